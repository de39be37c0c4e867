"""SimCLR: two views of each image by a generator of views, and the InfoNCE loss."""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


class ContrastiveLearningViewGenerator:
    def __init__(self, base_transform, n_views=2):
        self.base_transform, self.n_views = base_transform, n_views

    def __call__(self, x):
        return [self.base_transform(x) for i in range(self.n_views)]


def get_simclr_pipeline_transform(size, s=1):
    color_jitter = transforms.ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)
    return transforms.Compose(
        [
            transforms.RandomResizedCrop(size=size),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([color_jitter], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.GaussianBlur(kernel_size=int(0.1 * size) // 2 * 2 + 1),
            transforms.ToTensor(),
        ]
    )


def info_nce_loss(features, n_views, temperature):
    count = len(features) // n_views
    labels = torch.cat([torch.arange(count) for _ in range(n_views)])
    labels = labels.unsqueeze(0) == labels.unsqueeze(1)
    features = nn.functional.normalize(features, dim=1)
    similarity = features @ features.T
    mask = torch.eye(len(labels), dtype=torch.bool)
    labels, similarity = labels[~mask].view(len(labels), -1), similarity[~mask].view(len(labels), -1)
    positives = similarity[labels].view(len(labels), -1)
    negatives = similarity[~labels].view(len(labels), -1)
    logits = torch.cat([positives, negatives], dim=1) / temperature
    return nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("-b", "--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--n-views", type=int, default=2)
    parser.add_argument("--temperature", type=float, default=0.07)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    generator = None
    if args.seed is not None:
        torch.manual_seed(args.seed)
        generator = torch.Generator().manual_seed(args.seed)
    views = ContrastiveLearningViewGenerator(get_simclr_pipeline_transform(64), args.n_views)
    train_dataset = datasets.ImageFolder(Path(args.data, "train"), transform=views)
    train_loader = DataLoader(
        train_dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=True,
        drop_last=True,
        generator=generator,
    )
    model = models.shufflenet_v2_x0_5(num_classes=32)
    optimizer = torch.optim.Adam(model.parameters(), 3e-4, weight_decay=1e-4)
    for epoch in range(args.epochs):
        for step, (images, _) in zip(range(args.steps), train_loader):
            loss = info_nce_loss(model(torch.cat(images, dim=0)), args.n_views, args.temperature)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"Epoch: {epoch}\tStep: {step}\tLoss: {loss.item():.6f}")


if __name__ == "__main__":
    main()
