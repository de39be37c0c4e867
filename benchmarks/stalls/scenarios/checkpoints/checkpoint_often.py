"""Convolutions over sensor recordings. Bottleneck: a checkpoint is written every fifth step.

Shows: every fifth step takes many times as long as the others; the loader has batches ready all the time.
Fix: a checkpoint each epoch.
"""

# expected: checkpoint
# data: recordings.npz
# fix:
# -            if step % 5 == 4:
# +            if step == len(loader) - 1:

import argparse
import tempfile
import time
from pathlib import Path

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
    embedding = nn.Embedding(100_000, 128)  # large, and hardly trained
    model = make_model(dataset.values.shape[1]).to(device)
    folder = tempfile.TemporaryDirectory()
    path = Path(folder.name) / "last.pt"
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for step, (windows, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(windows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            if step % 5 == 4:
                state = {"model": model.state_dict(), "embedding": embedding.state_dict(), "step": step}
                torch.save(state, path)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
