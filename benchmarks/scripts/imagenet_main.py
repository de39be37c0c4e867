"""ImageNet training as in pytorch/examples: ImageFolders, AverageMeters, validation after each epoch."""

import argparse
import random
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


def accuracy(output, target, topk=(1, 5)):
    correct = output.topk(max(topk), 1).indices.t() == target.unsqueeze(0)
    return [100 * correct[:k].any(0).float().mean() for k in topk]


def train(loader, model, criterion, optimizer, epoch, steps):
    model.train()
    for i, (images, target) in enumerate(loader):
        if i == steps:
            break
        output = model(images)
        loss = criterion(output, target)
        acc1, acc5 = accuracy(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"Epoch: [{epoch}][{i}/{len(loader)}] Loss {loss.item():.4e} Acc@1 {acc1:.2f} Acc@5 {acc5:.2f}")


def validate(loader, model, criterion):
    model.eval()
    losses, right, count = 0.0, 0.0, 0
    with torch.no_grad():
        for images, target in loader:
            output = model(images)
            losses += criterion(output, target).item() * len(images)
            right += accuracy(output, target)[0].item() * len(images)
            count += len(images)
    print(f" * Loss {losses / count:.4f} Acc@1 {right / count:.3f} of {count}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("-a", "--arch", default="shufflenet_v2_x0_5")
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int)
    parser.add_argument("-e", "--evaluate", action="store_true")
    args = parser.parse_args()
    generator = None
    if args.seed is not None:
        random.seed(args.seed)
        torch.manual_seed(args.seed)
        generator = torch.Generator().manual_seed(args.seed)
    model = models.__dict__[args.arch](num_classes=10)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    normalize = transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    train_dataset = datasets.ImageFolder(
        Path(args.data, "train"),
        transforms.Compose(
            [
                transforms.RandomResizedCrop(args.size),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    val_dataset = datasets.ImageFolder(
        Path(args.data, "val"),
        transforms.Compose(
            [
                transforms.Resize(args.size * 8 // 7),
                transforms.CenterCrop(args.size),
                transforms.ToTensor(),
                normalize,
            ]
        ),
    )
    train_loader = DataLoader(
        train_dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=True,
        generator=generator,
    )
    val_loader = DataLoader(
        val_dataset, batch_size=args.batch_size, shuffle=False, num_workers=args.workers, pin_memory=True
    )
    validate(val_loader, model, criterion)
    if args.evaluate:
        return
    for epoch in range(args.epochs):
        train(train_loader, model, criterion, optimizer, epoch, args.steps)
        validate(val_loader, model, criterion)
        scheduler.step()


if __name__ == "__main__":
    main()
