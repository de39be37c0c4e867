"""Convolutions over sensor recordings. Bottleneck: gc.collect() after each step, with a large index.

Shows: each step takes many times as long as forward and backward pass; it waits for nothing.
Fix: no gc.collect() in the loop, gc.freeze() before it.
"""

# expected: gc
# data: recordings.npz
# fix:
# -    optimizer = torch.optim.Adam(model.parameters())
# -
# +    optimizer = torch.optim.Adam(model.parameters())
# +
# +    gc.freeze()
#
# -            gc.collect()  # "against memory leaks"

import argparse
import gc
import time

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

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        start, stop = self.starts[index], self.starts[index + 1]
        start += np.random.randint(stop - start - WINDOW + 1)
        window = self.values[start : start + WINDOW]
        return torch.from_numpy(window.T.copy()), int(self.labels[index])


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
    index = {number: {"name": f"recording {number}", "sites": [number]} for number in range(300_000)}
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for windows, labels in loader:
            loss = nn.functional.cross_entropy(model(windows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            gc.collect()  # "against memory leaks"
        assert len(index)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
