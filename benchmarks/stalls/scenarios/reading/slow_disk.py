"""Small CNN on images. Bottleneck: the images lie on a mount that gives 8 MB/s to all readers together.

Nothing in this script is slow: give it a folder that `benchmarks/stalls/slow_mount.py` mounts.
Shows: workers spend their time in read(), the cores are idle, more workers give nothing.
Fix: a local copy of the images.
"""

# expected: read
# data: pictures
# mount: 8 MB/s

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class SmallNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 7, stride=4, padding=3), nn.BatchNorm2d(24), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(24, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(args.device)
    train = datasets.ImageFolder(
        args.data,
        transforms.Compose(
            [
                transforms.RandomResizedCrop(160),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
            ]
        ),
    )
    loader = DataLoader(
        train,
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=True,
        drop_last=True,
    )
    model = SmallNet(len(train.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    for epoch in range(args.epochs):
        start = time.perf_counter()
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            loss.backward()
            optimizer.step()
        rate = len(loader) * args.batch_size / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
