"""Names of molecules as tokens. Bottleneck: the vocabulary, 40,000 entries of JSON, is loaded per sample.

Shows: workers compute in json/decoder.py.
Fix: loaded once, in __init__.
"""

# expected: read dataset
# names: json.load(
# advises: once | load
# fix:
# -        tokens = json.load(self.vocabulary.open())
# +        tokens = self.tokens

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ENTRIES = 40_000


class Molecules(Dataset):
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary
        self.tokens = json.load(vocabulary.open())

    def __len__(self):
        return 3000

    def encode(self, text):
        tokens = json.load(self.vocabulary.open())
        return [tokens[text[at : at + 3]] for at in range(0, len(text), 3)]

    def __getitem__(self, index):
        text = "".join(f"{(index * step) % ENTRIES:05x}"[:3] for step in range(1, 20))
        return torch.tensor(self.encode(text)), index % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=10)
    args = parser.parse_args()

    vocabulary = Path(args.data) / "molecules.json"
    if not vocabulary.exists():
        names = {f"{number:05x}"[:3]: number % 500 for number in range(ENTRIES)}
        vocabulary.write_text(json.dumps(names | {f"word-{n}": n % 500 for n in range(ENTRIES)}))
    torch.set_num_threads(1)
    loader = DataLoader(Molecules(vocabulary), args.batch_size, shuffle=True, num_workers=2)
    model = nn.Sequential(nn.Embedding(500, 64), nn.Flatten(), nn.Linear(19 * 64, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for tokens, toxic in loader:
            loss = nn.functional.cross_entropy(model(tokens), toxic)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(loader.dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
