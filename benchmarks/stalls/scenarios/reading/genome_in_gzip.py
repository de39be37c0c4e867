"""Windows of a genome. Bottleneck: seek() in a gzip file inflates all that lies before, for each window.

Shows: workers compute in gzip.py and zlib all the time; hardly anything is read from the disk.
Fix: inflate the file once.
"""

# expected: read decode dataset
# names: bases_at | gzip.open | file.seek
# fix:
# -        self.path = path
# +        self.path = path
# +        with gzip.open(path) as file:
# +            self.genome = file.read()
#
# -        with gzip.open(self.path) as file:
# -            file.seek(start)
# -            return file.read(WINDOW)
# +        return self.genome[start : start + WINDOW]

import argparse
import gzip
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BASES, WINDOW, WINDOWS = 2_000_000, 400, 2800


def write_genome(path):
    rng = np.random.default_rng(14)
    path.write_bytes(gzip.compress(rng.choice(np.frombuffer(b"ACGT", np.uint8), BASES).tobytes(), 6))


class Genome(Dataset):
    """Windows of 400 bases; the label says if there is more G and C than A and T."""

    def __init__(self, path):
        self.path = path
        self.codes = np.zeros(256, np.int64)
        self.codes[np.frombuffer(b"ACGT", np.uint8)] = range(4)
        self.starts = np.random.default_rng(15).integers(BASES - WINDOW, size=WINDOWS).tolist()

    def __len__(self):
        return WINDOWS

    def bases_at(self, start):
        with gzip.open(self.path) as file:
            file.seek(start)
            return file.read(WINDOW)

    def __getitem__(self, index):
        codes = torch.from_numpy(self.codes[np.frombuffer(self.bases_at(self.starts[index]), np.uint8)])
        if torch.rand(()) < 0.5:
            codes = 3 - codes.flip(0)
        label = ((codes == 1) | (codes == 2)).sum() > WINDOW // 2
        return nn.functional.one_hot(codes, 4).T.float(), label.float()


class Trainer:
    def __init__(self, model, loader, rate=1e-3):
        self.model, self.loader = model, loader
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def step(self, windows, labels):
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(windows).squeeze(1), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss.item()

    def epoch(self, number):
        start = time.perf_counter()
        losses = [self.step(windows, labels) for windows, labels in self.loader]
        rate = len(self.loader.dataset) / (time.perf_counter() - start)
        print(f"epoch {number}: loss {sum(losses) / len(losses):.3f}, {rate:.1f} samples/s", flush=True)

    def fit(self, epochs):
        for number in range(epochs):
            self.epoch(number)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    path = Path(args.data) / "genome.txt.gz"
    if not path.exists():
        write_genome(path)
    loader = DataLoader(Genome(path), args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv1d(4, 48, 15), nn.ReLU(), nn.MaxPool1d(4), nn.Conv1d(48, 64, 9), nn.ReLU(), nn.MaxPool1d(4),
        nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 1),
    )  # fmt: skip
    model(torch.zeros(1, 4, WINDOW))
    Trainer(model, loader).fit(args.epochs)


if __name__ == "__main__":
    main()
