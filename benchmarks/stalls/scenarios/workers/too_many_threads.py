"""Small CNN on images. Bottleneck: 32 threads for the step, as on the machine that the script came from.

Shows: batches are ready, yet the step takes far longer than with as many threads as cores.
Fix: --threads 1 (two workers need the other core), or as many as there are cores.
"""

# expected: oversubscribed
# data: pictures
# fix:
# -    parser.add_argument("--threads", type=int, default=32)
# +    parser.add_argument("--threads", type=int, default=1)

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return torch.relu(x + self.conv2(torch.relu(self.norm(self.conv1(x)))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    device = torch.device(args.device)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(112),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.5, 0.5), (0.25, 0.25, 0.25)),
        ]
    )
    dataset = datasets.ImageFolder(args.data, transform)
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True
    )
    stem = nn.Sequential(nn.Conv2d(3, 48, 8, stride=8), nn.ReLU())
    blocks = nn.Sequential(*(Block(48) for _ in range(6)))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, len(dataset.classes)))
    model = nn.Sequential(stem, blocks, head).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
