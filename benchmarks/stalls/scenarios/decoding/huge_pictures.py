"""Small CNN on photographs as cameras write them. Bottleneck: 7 megapixels are decoded for a crop of 160.

Shows: both workers are busy all the time, most of it in the JPEG decoder; the step waits.
Fix: the photographs made smaller once, beforehand; or a decoder that reads no more than the crop needs.
"""

# expected: decode
# data: huge
# fixed data: pictures

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms


def block(inputs, outputs, stride):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(args.device)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(160),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = datasets.ImageFolder(args.data, transform)
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=args.workers, persistent_workers=True
    )
    body = nn.Sequential(block(3, 16, 2), block(16, 32, 2), block(32, 64, 2))
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, len(dataset.classes)))
    model = nn.Sequential(body, head).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()

    for epoch in range(args.epochs):
        start, correct, seen = time.perf_counter(), 0, 0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            scores = model(images)
            optimizer.zero_grad()
            criterion(scores, labels).backward()
            optimizer.step()
            correct += (scores.argmax(1) == labels).sum().item()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: accuracy {correct / seen:.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
