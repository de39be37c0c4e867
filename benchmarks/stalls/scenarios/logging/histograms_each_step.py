"""Convolutions over recordings. Bottleneck: histograms of all weights go to TensorBoard in each step.

Shows: the loader is far ahead; most of a step is spent in torch.utils.tensorboard.
Fix: histograms every 200 steps.
"""

# expected: logging
# data: recordings.npz
# fix:
# -                if step % 1 == 0:
# +                if step % 200 == 0:

import argparse
import tempfile
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

WINDOW = 100


def load(path):
    with np.load(path) as archive:
        values, starts, labels = archive["values"], archive["starts"], archive["labels"]
    windows = np.stack([values[start : start + WINDOW].T for start in starts[:-1]])
    return TensorDataset(torch.from_numpy(windows), torch.from_numpy(labels))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = load(args.data)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv1d(16, 64, 7), nn.ReLU(), nn.Conv1d(64, 64, 5), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    step = 0
    with tempfile.TemporaryDirectory() as folder, SummaryWriter(folder) as writer:
        for epoch in range(args.epochs):
            start = time.perf_counter()
            for windows, labels in loader:
                loss = nn.functional.cross_entropy(model(windows), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step % 1 == 0:
                    for name, parameter in model.named_parameters():
                        writer.add_histogram(name, parameter, step)
                        writer.add_histogram(f"{name}.grad", parameter.grad, step)
            rate = len(dataset) / (time.perf_counter() - start)
            print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
