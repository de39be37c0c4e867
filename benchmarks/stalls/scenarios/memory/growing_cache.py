"""Residual net on recordings. Bottleneck: memory; each worker caches what it made, as Python lists.

Shows: training runs at the speed of its step, but the workers' memory grows with each sample.
Fix: no cache, or one of bounded size.
"""

# expected: memory
# data: recordings.npz
# fix:
# -        if key not in self.cache:
# -            window = self.values[start : start + WINDOW]
# -            self.cache[key] = ((window - window.mean()) / window.std()).T.tolist()
# -        return torch.tensor(self.cache[key]), int(self.labels[index])
# +        window = self.values[start : start + WINDOW]
# +        window = ((window - window.mean()) / window.std()).T.copy()
# +        return torch.from_numpy(window), int(self.labels[index])

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 256


class Recordings(Dataset):
    """Normalised windows; "cached, so that later epochs are faster"."""

    def __init__(self, path):
        with np.load(path) as archive:
            self.values, self.starts, self.labels = archive["values"], archive["starts"], archive["labels"]
        self.cache = {}

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        start = self.starts[index] + np.random.randint(16)
        key = (index, int(start))
        if key not in self.cache:
            window = self.values[start : start + WINDOW]
            self.cache[key] = ((window - window.mean()) / window.std()).T.tolist()
        return torch.tensor(self.cache[key]), int(self.labels[index])


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 5, padding=2), nn.BatchNorm1d(width),
        )  # fmt: skip

    def forward(self, x):
        return torch.relu(x + self.layers(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Recordings(args.data)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    channels = dataset.values.shape[1]
    model = nn.Sequential(
        nn.Conv1d(channels, 96, 7, padding=3), Block(96), Block(96), nn.AdaptiveAvgPool1d(1), nn.Flatten(),
        nn.Linear(96, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for windows, labels in loader:
            loss = nn.functional.cross_entropy(model(windows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
