"""Parts of a street in a laser scan. Bottleneck: np.random.choice shuffles all points for each batch.

Shows: the training process spends more on the next indices than on its step; the worker waits for them.
Fix: Generator.choice, which draws a few of many without that.
"""

# expected: sampler
# names: RandomPlaces | np.random.choice
# fix:
# -        for _ in range(self.batches):
# -            yield np.random.choice(self.points, self.batch_size, replace=False).tolist()
# +        rng = np.random.default_rng()
# +        for _ in range(self.batches):
# +            yield rng.choice(self.points, self.batch_size, replace=False).tolist()

import argparse
import time

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset, Sampler

POINTS, NEAR = 1_200_000, 384
NAMES = ["road", "facade", "tree", "car"]


class Scan(Dataset):
    """Points in the order in which the laser met them, so neighbors in the array are neighbors in space."""

    def __init__(self):
        rng = np.random.default_rng(48)
        self.labels = np.repeat(rng.integers(0, len(NAMES), POINTS // 1000), 1000)
        along = np.arange(POINTS, dtype=np.float32) / 1000
        spread = np.array([[2, 2, 0.02], [0.1, 2, 3], [1, 1, 2], [1, 0.5, 0.4]], dtype=np.float32)
        self.points = spread[self.labels] * rng.standard_normal((POINTS, 3), dtype=np.float32)
        self.points[:, 0] += along

    def __len__(self):
        return POINTS

    def __getitem__(self, index):
        first = min(max(index - NEAR // 2, 0), POINTS - NEAR)
        near = self.points[first : first + NEAR] - self.points[index]
        return near.T.copy(), self.labels[index]


class RandomPlaces(Sampler):
    """A few places of the scan per batch, all different."""

    def __init__(self, points, batch_size, batches):
        self.points, self.batch_size, self.batches = points, batch_size, batches

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            yield np.random.choice(self.points, self.batch_size, replace=False).tolist()


class PointNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.conv1 = nn.Conv1d(3, 48, 1)
        self.conv2 = nn.Conv1d(48, 96, 1)
        self.conv3 = nn.Conv1d(96, 192, 1)
        self.bn1, self.bn2, self.bn3 = nn.BatchNorm1d(48), nn.BatchNorm1d(96), nn.BatchNorm1d(192)
        self.fc = nn.Linear(192, k)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        x = torch.relu(self.bn3(self.conv3(x)))
        return torch.log_softmax(self.fc(x.max(dim=2).values), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=72)
    opt = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Scan()
    places = RandomPlaces(len(dataset), opt.batch_size, opt.batches)
    loader = DataLoader(dataset, batch_sampler=places, num_workers=1, persistent_workers=True)
    net = PointNet(len(NAMES))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    for epoch in range(opt.epochs):
        net.train()
        begin = time.time()
        correct = count = 0
        for points, target in loader:
            optimizer.zero_grad()
            pred = net(points)
            loss = nn.functional.nll_loss(pred, target)
            loss.backward()
            optimizer.step()
            correct += pred.argmax(1).eq(target).sum().item()
            count += len(target)
        rate = count / (time.time() - begin)
        print(f"[{epoch}] accuracy: {correct / count:.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
