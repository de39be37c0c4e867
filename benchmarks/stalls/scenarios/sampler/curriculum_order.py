"""Easy signals first. Bottleneck: the sampler weighs two million candidates again before each short epoch.

Shows: workers are idle at the beginning of an epoch, while the training thread computes with NumPy.
Fix: weigh only those that the epoch takes.
"""

# expected: sampler
# names: Curriculum | argsort
# fix:
# -        difficulty = self.difficulty
# +        difficulty = self.difficulty[: 2 * self.per_epoch]

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

CANDIDATES, LENGTH = 2_000_000, 256


class Signals(Dataset):
    def __len__(self):
        return CANDIDATES

    def __getitem__(self, index):
        time_axis = np.arange(LENGTH, dtype=np.float32)
        return torch.from_numpy(np.sin(time_axis * (index % 97) / 50)), index % 10


class Curriculum(Sampler):
    """The candidates of an epoch: with time more of the hard ones."""

    def __init__(self, size, per_epoch):
        self.difficulty = np.random.default_rng(0).random(size)
        self.per_epoch, self.epoch = per_epoch, 0

    def __len__(self):
        return self.per_epoch

    def __iter__(self):
        self.epoch += 1
        difficulty = self.difficulty
        noise = np.random.normal(scale=0.1 * self.epoch, size=len(difficulty))
        order = np.argsort(difficulty + noise)
        return iter(order[: self.per_epoch].tolist())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: signals are computed")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Signals()
    order = Curriculum(len(dataset), 40 * args.batch_size)
    loader = DataLoader(dataset, args.batch_size, sampler=order, num_workers=1, persistent_workers=True)
    net = nn.Sequential(nn.Linear(LENGTH, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for signals, pitch in loader:
            loss = nn.functional.cross_entropy(net(signals), pitch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(pitch)
        print(f"epoch {epoch}: {seen / (time.perf_counter() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
