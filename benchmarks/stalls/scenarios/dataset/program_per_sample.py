"""Checksums as features. Bottleneck: a program is started for each sample.

Shows: workers wait in subprocess.py, cores start processes.
Fix: the library that does the same.
"""

# expected: dataset read
# names: subprocess
# advises: library
# fix:
# -        done = subprocess.run(["sha256sum"], input=text, capture_output=True, check=True)
# -        return done.stdout[:64]
# +        return by_library(text)

import argparse
import hashlib
import subprocess
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Hashes(Dataset):
    def __len__(self):
        return 10_000

    def digest(self, text):
        done = subprocess.run(["sha256sum"], input=text, capture_output=True, check=True)
        return done.stdout[:64]

    def __getitem__(self, index):
        digest = self.digest(f"record {index}".encode())
        return torch.tensor([int(character, 16) for character in digest.decode()]) / 16, index % 2


def by_library(text):
    return hashlib.sha256(text).hexdigest().encode()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Hashes(), args.batch_size, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(args.epochs):
        start = time.perf_counter()
        for digests, labels in loader:
            loss = nn.functional.cross_entropy(model(digests), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{len(loader.dataset) / (time.perf_counter() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
