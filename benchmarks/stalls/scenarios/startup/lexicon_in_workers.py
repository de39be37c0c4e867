"""Syllables of words. Bottleneck: each worker parses the lexicon when it starts, again in each epoch.

Shows: the first batch of an epoch takes long, as `load_lexicon` runs in the workers; others come in time.
Fix: persistent_workers=True, or the lexicon is loaded once, before the workers are started.
"""

# expected: startup
# names: load_lexicon | worker_init_fn | persistent_workers
# advises: persistent_workers | persistent workers
# fix:
# -        worker_init_fn=load_lexicon,
# +        worker_init_fn=load_lexicon,
# +        persistent_workers=True,

import argparse
import random
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

ENTRIES, LETTERS, WORDS_PER_EPOCH = 150_000, 24, 10_000


def write_lexicon(path):
    """One line per word: the word, a tab, and its phonemes with spaces between them."""
    rng = random.Random(3)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(ENTRIES):
            syllables = [rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(1, 8))]
            file.write("".join(syllables) + "\t" + " ".join(" ".join(one) for one in syllables) + "\n")


def load_lexicon(_worker_id):
    dataset = get_worker_info().dataset
    dataset.lexicon = []
    with open(dataset.path, encoding="utf-8") as file:
        for line in file:
            word, phonemes = line.rstrip("\n").split("\t")
            dataset.lexicon.append((word, [phoneme.upper() for phoneme in phonemes.split()]))


class Words(Dataset):
    def __init__(self, path):
        self.path = path
        self.lexicon = None

    def __len__(self):
        return WORDS_PER_EPOCH

    def __getitem__(self, index):
        word, phonemes = self.lexicon[torch.randint(ENTRIES, ()).item()]
        letters = torch.zeros(LETTERS, dtype=torch.long)
        letters[: len(word)] = torch.tensor([ord(letter) - 96 for letter in word])
        return letters, sum(phoneme in "AEIOU" for phoneme in phonemes)


class Counter(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(27, width, padding_idx=0)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, letters):
        _, hidden = self.rnn(self.embedding(letters))
        return self.head(hidden[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=100)
    args = parser.parse_args()

    torch.set_num_threads(1)
    path = Path(args.data) / "lexicon.tsv"
    if not path.exists():
        write_lexicon(path)
    loader = DataLoader(
        Words(path),
        batch_size=args.batch_size,
        num_workers=2,
        worker_init_fn=load_lexicon,
    )
    model = Counter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for letters, counts in loader:
            loss = nn.functional.cross_entropy(model(letters), counts)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(counts)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
