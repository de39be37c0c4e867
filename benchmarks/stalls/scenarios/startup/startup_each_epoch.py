"""Small CNN on images, in short epochs. Bottleneck: spawned workers, started again for each of them.

Shows: every epoch begins with seconds of waiting while each worker imports torch; after that all is well.
Fix: persistent_workers=True.
"""

# expected: startup
# data: pictures
# fix:
# -        multiprocessing_context="spawn",
# +        multiprocessing_context="spawn",
# +        persistent_workers=True,

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler
from torchvision import datasets, transforms


def make_model(classes):
    features = nn.Sequential(
        nn.Conv2d(3, 32, 7, stride=4, padding=3),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1),
        nn.ReLU(),
    )
    return nn.Sequential(features, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--samples-per-epoch", type=int, default=640)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(args.device)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = datasets.ImageFolder(args.data, transform)
    loader = DataLoader(
        dataset,
        args.batch_size,
        sampler=RandomSampler(dataset, num_samples=args.samples_per_epoch),
        num_workers=2,
        multiprocessing_context="spawn",
    )
    model = make_model(len(dataset.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        start, total, seen = time.perf_counter(), 0.0, 0
        for images, labels in loader:
            loss = criterion(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / seen:.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
