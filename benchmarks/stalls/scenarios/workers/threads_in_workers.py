"""Sensor recordings, whitened in the dataset. Bottleneck: each worker's matrix products run on 16 threads.

Shows: both workers take all cores, which their threads mostly spend waiting for each other. It is so in a
container that may use two cores of a large machine: OpenBLAS starts a thread for each core that it sees.
Fix: one thread for each worker: OPENBLAS_NUM_THREADS=1.
"""

# expected: oversubscribed
# data: recordings.npz
# fix:
# -os.environ["OPENBLAS_NUM_THREADS"] = "16"  # stands for the machine's number of cores
# +os.environ["OPENBLAS_NUM_THREADS"] = "1"  # stands for the machine's number of cores

import argparse
import os
import time

os.environ["OPENBLAS_NUM_THREADS"] = "16"  # stands for the machine's number of cores

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 128


class Recordings(Dataset):
    """Random windows of recordings, kept in one array behind each other."""

    def __init__(self, path):
        with np.load(path) as archive:
            self.values, self.starts = archive["values"], archive["starts"]
            self.labels = archive["labels"]
        self.basis = np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32) / 256

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        start, stop = self.starts[index], self.starts[index + 1]
        start += np.random.randint(stop - start - WINDOW + 1)
        window = self.values[start : start + WINDOW]
        features = np.resize(window, (256, 256))
        for _ in range(2):
            features = np.tanh(features @ self.basis)
        return torch.from_numpy(features[:WINDOW, :16].T.copy()), int(self.labels[index])


def make_model(channels, width=96):
    body = nn.Sequential(
        nn.Conv1d(channels, width, 7, padding=3), nn.ReLU(), nn.Conv1d(width, width, 5, padding=2), nn.ReLU()
    )
    return nn.Sequential(body, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(width, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(args.device)
    dataset = Recordings(args.data)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = make_model(dataset.values.shape[1]).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for windows, labels in loader:
            loss = nn.functional.cross_entropy(model(windows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
