"""Small CNN on images. Bottleneck: num_workers is left at 0, so that loading and training take turns.

Shows: loader and step alone are each nearly twice as fast as both together; one core is idle all the time.
Fix: num_workers=2.
"""

# expected: workers
# data: pictures
# fix:
# -    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
# +    loader = DataLoader(
# +        dataset, batch_size=args.batch_size, shuffle=True, num_workers=2, persistent_workers=True
# +    )

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def make_model(classes):
    return nn.Sequential(
        nn.Conv2d(3, 24, 7, stride=4, padding=3),
        nn.ReLU(),
        nn.Conv2d(24, 48, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(48, 96, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, classes),
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.manual_seed(0)
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
    dataset = ImageFolder(args.data, transform)
    loader = DataLoader(dataset, batch_size=args.batch_size, shuffle=True)
    model = make_model(len(dataset.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        start = time.perf_counter()
        total, seen = 0.0, 0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / seen:.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
