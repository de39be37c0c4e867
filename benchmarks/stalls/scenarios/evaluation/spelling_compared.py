"""Old spellings made new, by convolutions. Bottleneck: for each epoch's test, edit distances in pure Python.

Shows: training steps hardly wait; more time goes into two nested loops, in the loop over another loader.
Fix: NumPy, for all lines of a batch at once; or a library.
"""

# expected: validation
# names: edit_distance | test(
# fix:
# -    return [edit_distance(*pair) for pair in zip(guesses.tolist(), texts.tolist(), strict=True)]
# +    guesses, texts = guesses.numpy(), texts.numpy()
# +    places = np.arange(texts.shape[1] + 1)
# +    row = np.tile(places, (len(texts), 1))
# +    for number in range(guesses.shape[1]):
# +        best = np.minimum(row[:, 1:] + 1, row[:, :-1] + (texts != guesses[:, number, None]))
# +        best = np.concatenate([np.full((len(texts), 1), number + 1), best], axis=1)
# +        row = np.minimum.accumulate(best - places, axis=1) + places
# +    return row[:, -1].tolist()

import argparse
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LETTERS = " abcdefghijklmnopqrstuvwxyz"
LINE, TRAINING, TEST = 150, 1600, 640
OLD = {"v": "u", "j": "i", "s": "f", "y": "ie", "c": "ck", "w": "vv"}


def write_text(rng):
    words = ("".join(rng.choices(LETTERS[1:], k=rng.randint(2, 9))) for _ in range(LINE // 2))
    return " ".join(words)[:LINE]


def age(text, rng):
    """Spells some letters as they were spelled once, and cuts or fills the line to its length."""
    return "".join(OLD.get(letter, letter) if rng.random() < 0.3 else letter for letter in text)[:LINE].ljust(
        LINE
    )


def encode(text):
    return torch.tensor([LETTERS.index(letter) for letter in text])


class Lines(Dataset):
    def __init__(self, size, seed):
        rng = random.Random(seed)
        texts = [write_text(rng) for _ in range(size)]
        self.pairs = [(encode(age(text, rng)), encode(text)) for text in texts]

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, index):
        return self.pairs[index]


class Corrector(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.embedding = nn.Embedding(len(LETTERS), width)
        self.layers = nn.ModuleList(nn.Conv1d(width, 2 * width, 9, padding=4) for _ in range(2))
        self.head = nn.Conv1d(width, len(LETTERS), 1)

    def forward(self, letters):
        x = self.embedding(letters).transpose(1, 2)
        for layer in self.layers:
            x = x + nn.functional.glu(layer(x), dim=1)
        return self.head(x)


def edit_distance(guess, text):
    """The least number of letters to insert, delete or replace."""
    row = list(range(len(text) + 1))
    for number, letter in enumerate(guess, 1):
        above, row = row, [number]
        for place, other in enumerate(text):
            row.append(min(above[place + 1] + 1, row[place] + 1, above[place] + (letter != other)))
    return row[-1]


def edit_distances(guesses, texts):
    return [edit_distance(*pair) for pair in zip(guesses.tolist(), texts.tolist(), strict=True)]


@torch.no_grad()
def test(model, loader):
    """Edits that the corrected lines still need, per letter."""
    model.eval()
    edits = []
    for letters, texts in loader:
        edits += edit_distances(model(letters).argmax(1), texts)
    model.train()
    return np.mean(edits) / LINE


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    train_loader = DataLoader(
        Lines(TRAINING, seed=69), args.batch_size, shuffle=True, num_workers=1, persistent_workers=True
    )
    test_loader = DataLoader(
        Lines(TEST, seed=70), 2 * args.batch_size, num_workers=1, persistent_workers=True
    )
    model = Corrector()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        start, total = time.perf_counter(), 0.0
        for letters, texts in train_loader:
            loss = nn.functional.cross_entropy(model(letters), texts)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        edits = test(model, test_loader)
        rate = TRAINING / (time.perf_counter() - start)
        print(
            f"epoch {epoch}: loss {total / len(train_loader):.3f}, {100 * edits:.1f} edits per 100 letters, "
            f"{rate:.1f} samples/s",
            flush=True,
        )


if __name__ == "__main__":
    main()
