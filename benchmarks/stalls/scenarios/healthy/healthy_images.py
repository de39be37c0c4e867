"""ResNet-18 on images, on the CPU. Healthy: the step is the limit, two workers are far ahead of it.

Shows: steps don't wait; the loader alone is more than ten times as fast as the step.
Fix: nothing in the loader; a faster device.
"""

# expected: healthy
# data: pictures

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.models import resnet18


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    device = torch.device(args.device)
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(112),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = datasets.ImageFolder(args.data, transform)
    loader = DataLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
        persistent_workers=True,
    )
    model = resnet18(num_classes=len(dataset.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    for epoch in range(args.epochs):
        start, correct = time.perf_counter(), 0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += (scores.argmax(1) == labels).sum().item()
        seen = len(loader) * args.batch_size
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: accuracy {correct / seen:.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
