"""Forecasts of electricity demand. Bottleneck: the curve of the loss is drawn and saved every eighth step.

Shows: the loader is far ahead; most of the time is spent in matplotlib, in the training process.
Fix: draw it once per epoch.
"""

# expected: logging
# names: plot_losses | savefig
# advises: less often | seldom | epoch
# needs: matplotlib
# fix:
# -            if step % 8 == 0:
# +            if step % 400 == 0:

import argparse
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

HOURS, PAST, AHEAD = 20_000, 168, 24


class Demand(Dataset):
    """Hourly demand of one region; a week is given, the next day is predicted."""

    def __init__(self):
        rng = np.random.default_rng(5)
        hours = np.arange(HOURS)
        daily, weekly = np.sin(hours * 2 * np.pi / 24), np.sin(hours * 2 * np.pi / 168)
        self.demand = (daily + 0.5 * weekly + 0.1 * rng.standard_normal(HOURS)).astype(np.float32)

    def __len__(self):
        return HOURS - PAST - AHEAD

    def __getitem__(self, index):
        window = self.demand[index : index + PAST + AHEAD]
        return window[:PAST], window[PAST:]


def plot_losses(losses, path):
    figure, axes = plt.subplots(figsize=(6, 4))
    axes.plot(losses[-500:])
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.grid(True)
    figure.savefig(path)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Demand()
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True
    )
    model = nn.Sequential(
        nn.Linear(PAST, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, AHEAD)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, step = [], 0

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for past, ahead in loader:
            loss = nn.functional.smooth_l1_loss(model(past), ahead)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            step += 1
            if step % 8 == 0:
                plot_losses(losses, Path(args.data) / "demand-losses.png")
            seen += len(past)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {np.mean(losses[-100:]):.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
