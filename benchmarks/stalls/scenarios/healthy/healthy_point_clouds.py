"""PointNet without workers; clouds are rotated and jittered in NumPy. Healthy: the step is the limit.

Shows: loading and training take turns, and a transform computes, but nearly all the time is the step's.
Fix: none.
"""

# expected: healthy

import argparse
import gc
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SHAPES, POINTS, KINDS = 640, 256, 10


class Shapes(Dataset):
    def __init__(self, transform):
        rng = np.random.default_rng(1)
        self.clouds = rng.standard_normal((SHAPES, POINTS, 3), dtype=np.float32)
        self.transform = transform

    def __len__(self):
        return SHAPES

    def __getitem__(self, index):
        return torch.from_numpy(self.transform(self.clouds[index])), index % KINDS


def rotate_and_jitter(cloud):
    angle = np.random.uniform(0, 2 * np.pi)
    sine, cosine = np.sin(angle), np.cos(angle)
    turn = np.array([[cosine, -sine, 0], [sine, cosine, 0], [0, 0, 1]], dtype=np.float32)
    cloud = cloud[np.random.permutation(len(cloud))] @ turn
    return cloud + np.random.normal(0, 0.01, cloud.shape).astype(np.float32)


class PointNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.points = nn.Sequential(
            nn.Conv1d(3, 64, 1), nn.BatchNorm1d(64), nn.ReLU(),
            nn.Conv1d(64, 128, 1), nn.BatchNorm1d(128), nn.ReLU(),
            nn.Conv1d(128, 512, 1), nn.BatchNorm1d(512), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Sequential(nn.Linear(512, 256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, KINDS))

    def forward(self, clouds):
        return self.head(self.points(clouds.transpose(1, 2)).amax(2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Shapes(rotate_and_jitter), args.batch_size, shuffle=True, num_workers=0)
    model = PointNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen, losses = time.perf_counter(), 0, []
        for clouds, kinds in loader:
            loss = nn.functional.cross_entropy(model(clouds), kinds)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            seen += len(kinds)
        gc.collect()
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
