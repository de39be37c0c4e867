"""Glyphs in a zip file. Bottleneck: it is opened for every sample, which parses the names of all its members.

Shows: workers compute in zipfile.py; they hardly wait for the disk.
Fix: one open zip file per worker.
"""

# expected: read
# names: zipfile.ZipFile(self.path)
# advises: once
# fix:
# -        with zipfile.ZipFile(self.path) as archive:
# -            data = archive.read(f"{index}.raw")
# +        self.archive = getattr(self, "archive", None) or zipfile.ZipFile(self.path)
# +        data = self.archive.read(f"{index}.raw")

import argparse
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GLYPHS, SIDE = 4000, 28


class Glyphs(Dataset):
    def __init__(self, path):
        self.path = path

    def __len__(self):
        return GLYPHS

    def __getitem__(self, index):
        with zipfile.ZipFile(self.path) as archive:
            data = archive.read(f"{index}.raw")
        glyph = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(1, SIDE, SIDE)
        return glyph / 255, index % 10


def make(path):
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(GLYPHS):
            archive.writestr(f"{number}.raw", rng.integers(0, 256, SIDE * SIDE, np.uint8).tobytes())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    path = Path(args.data) / "glyphs.zip"
    if not path.exists():
        make(path)
    torch.set_num_threads(1)
    loader = DataLoader(Glyphs(path), args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for glyphs, labels in loader:
            loss = nn.functional.cross_entropy(model(glyphs), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = GLYPHS / (time.perf_counter() - start)
        print(f"epoch {epoch}: {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
