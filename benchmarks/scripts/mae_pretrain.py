"""Pretraining of a masked autoencoder: bicubic crops, a distributed sampler, gradients accumulated."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


class MaskedAutoencoder(nn.Module):
    def __init__(self, size=64, patch=16, width=64):
        super().__init__()
        self.patch = patch
        count = (size // patch) ** 2
        self.embed = nn.Linear(3 * patch * patch, width)
        self.position = nn.Parameter(torch.randn(count, width) * 0.02)
        self.token = nn.Parameter(torch.zeros(width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3 * patch * patch)

    def patchify(self, images):
        patches = nn.functional.unfold(images, self.patch, stride=self.patch)
        return patches.transpose(1, 2)

    def forward(self, images, mask_ratio):
        target = self.patchify(images)
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6) ** 0.5
        mask = torch.rand(target.shape[:2]) < mask_ratio
        tokens = torch.where(mask.unsqueeze(-1), self.token, self.embed(self.patchify(images)))
        predicted = self.head(self.encoder(tokens + self.position))
        return ((predicted - target) ** 2).mean(-1)[mask].mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--accum_iter", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--mask_ratio", type=float, default=0.75)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    transform_train = transforms.Compose(
        [
            transforms.RandomResizedCrop(64, scale=(0.2, 1.0), interpolation=3),  # 3 is bicubic
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
        ]
    )
    dataset_train = datasets.ImageFolder(Path(args.data, "train"), transform=transform_train)
    sampler_train = DistributedSampler(dataset_train, num_replicas=1, rank=0, shuffle=True)
    data_loader_train = DataLoader(
        dataset_train,
        sampler=sampler_train,
        batch_size=args.batch_size,
        num_workers=args.num_workers,
        pin_memory=True,
        drop_last=True,
    )
    model = MaskedAutoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-4, betas=(0.9, 0.95))
    for epoch in range(args.epochs):
        sampler_train.set_epoch(epoch)
        for step, (samples, _) in zip(range(args.steps), data_loader_train):
            loss = model(samples, mask_ratio=args.mask_ratio)
            (loss / args.accum_iter).backward()
            if (step + 1) % args.accum_iter == 0:
                optimizer.step()
                optimizer.zero_grad()
            print(f"Epoch: [{epoch}] [{step}/{len(data_loader_train)}] loss: {loss.item():.6f}")


if __name__ == "__main__":
    main()
