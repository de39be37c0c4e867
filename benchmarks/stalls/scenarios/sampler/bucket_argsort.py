"""Point clouds of similar size share a batch. Bottleneck: np.argsort of 400,000 sizes for each batch.

Shows: two workers are idle most of the time; the training thread sorts.
Fix: keep the sorted indices.
"""

# expected: sampler
# names: BySize | argsort
# advises: once
# fix:
# -            order = np.argsort(self.sizes)
# +            order = self.order

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

CLOUDS, STEPS = 400_000, 400


class Clouds(Dataset):
    sizes = np.random.default_rng(0).integers(100, 4000, CLOUDS)

    def __len__(self):
        return CLOUDS

    def __getitem__(self, index):
        points = np.random.default_rng(index).standard_normal((256, 3), dtype=np.float32)
        return torch.from_numpy(points), int(index % 8)


class BySize(BatchSampler):
    def __init__(self, sizes, sampler, batch_size):
        super().__init__(sampler, batch_size, drop_last=True)
        self.sizes = sizes
        self.order = np.argsort(sizes)

    def __iter__(self):
        for first in self.sampler:
            order = np.argsort(self.sizes)
            begin = first % (CLOUDS - self.batch_size)
            yield order[begin : begin + self.batch_size].tolist()


class PointNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(width, 8)

    def forward(self, points):
        return self.head(self.each(points).amax(dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    clouds = Clouds()
    batches = BySize(clouds.sizes, RandomSampler(clouds, num_samples=STEPS), args.batch_size)
    loader = DataLoader(clouds, batch_sampler=batches, num_workers=2, persistent_workers=True)
    net = PointNet()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for points, shapes in loader:
            loss = nn.functional.cross_entropy(net(points), shapes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(shapes)
        print(f"{seen / (time.perf_counter() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
