"""Convolutions over sensor recordings. Bottleneck: every 200th comes from the archive, which takes 0.4 s.

Shows: steps wait long and seldom; on average the workers are faster than the step, but batches come in order,
and the four that are prefetched don't last for 0.4 s.
Fix: prefetch_factor=16; or batches in the order in which they are ready (in_order=False).
"""

# expected: straggler
# data: recordings.npz
# fix:
# -    loader = DataLoader(dataset, args.batch_size, num_workers=2, persistent_workers=True)
# +    loader = DataLoader(
# +        dataset, args.batch_size, num_workers=2, persistent_workers=True, prefetch_factor=16
# +    )

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 128


class Recordings(Dataset):
    """Windows of recordings; the newest are at hand, others have to be fetched from the archive."""

    def __init__(self, path):
        with np.load(path) as archive:
            self.values, self.starts = archive["values"], archive["starts"]
            self.labels = archive["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        if index % 200 == 199:
            time.sleep(0.4)  # stands for the archive's answer
        start, stop = self.starts[index], self.starts[index + 1]
        start += np.random.randint(stop - start - WINDOW + 1)
        window = self.values[start : start + WINDOW]
        window = (window - window.mean(0)) / (window.std(0) + 1e-6)
        return torch.from_numpy(window.T.copy()), int(self.labels[index])


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
    loader = DataLoader(dataset, args.batch_size, num_workers=2, persistent_workers=True)
    channels = dataset.values.shape[1]
    body = nn.Sequential(
        nn.Conv1d(channels, 160, 7, padding=3), nn.ReLU(), nn.Conv1d(160, 192, 5, padding=2), nn.ReLU()
    )
    model = nn.Sequential(body, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(192, 10)).to(device)
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
