"""Photographs with recorded sensor noise. Bottleneck: the transform loads the 28 MB of noise for each image.

Shows: workers spend their time in np.load, below a transform.
Fix: loaded once, when the transform is made.
"""

# expected: read
# names: np.load(self.path)
# advises: once
# data: pictures
# fix:
# -        frame = np.load(self.path)
# +        frame = self.frame

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

SIDE = 64


class SensorNoise:
    """Adds a random window of a dark frame."""

    def __init__(self, path):
        self.path = path
        self.frame = np.load(path)

    def __call__(self, image):
        frame = np.load(self.path)
        row, column = np.random.randint(0, 1536 - SIDE, 2)
        return image + torch.from_numpy(frame[:, row : row + SIDE, column : column + SIDE].copy())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    path = Path(args.data).parent / "dark-frame-1536.npy"
    if not path.exists():
        np.save(path, np.random.default_rng(0).standard_normal((3, 1536, 1536), np.float32) / 50)
    torch.set_num_threads(1)
    transform = transforms.Compose(
        [transforms.Resize(SIDE), transforms.CenterCrop(SIDE), transforms.ToTensor(), SensorNoise(path)]
    )
    dataset = datasets.ImageFolder(args.data, transform)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels % 10)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        print(f"epoch {epoch}: {seen / (time.perf_counter() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
