"""Small CNN on images. Bottleneck: an elastic deformation costs far more than all else together.

Shows: both workers are busy all the time, most of it in one transform; the step waits.
Fix: without it, with a cheaper one, or the same once for the whole batch.
"""

# expected: transform
# data: pictures
# fix:
# -        transforms.ElasticTransform(alpha=50.0, sigma=4.0),

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def make_model(classes):
    return nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=4, padding=2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(64, classes),
    )


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
    augment = [
        transforms.RandomResizedCrop(160),
        transforms.RandomHorizontalFlip(),
        transforms.ElasticTransform(alpha=50.0, sigma=4.0),
        transforms.ToTensor(),
        transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ]
    dataset = datasets.ImageFolder(args.data, transforms.Compose(augment))
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True
    )
    model = make_model(len(dataset.classes)).to(device)
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
