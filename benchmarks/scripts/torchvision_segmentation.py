"""Segmentation as in torchvision's references: pairs of an image and a mask through joint transforms."""

import argparse
import random
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.transforms import functional as F


class Compose:
    def __init__(self, transforms):
        self.transforms = transforms

    def __call__(self, image, target):
        for transform in self.transforms:
            image, target = transform(image, target)
        return image, target


class RandomResize:
    def __init__(self, min_size, max_size):
        self.min_size, self.max_size = min_size, max_size

    def __call__(self, image, target):
        size = random.randint(self.min_size, self.max_size)
        nearest = F.InterpolationMode.NEAREST
        return F.resize(image, size, antialias=True), F.resize(target, size, interpolation=nearest)


class RandomHorizontalFlip:
    def __init__(self, flip_prob):
        self.flip_prob = flip_prob

    def __call__(self, image, target):
        if random.random() < self.flip_prob:
            image, target = F.hflip(image), F.hflip(target)
        return image, target


class RandomCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image, target):
        image, target = pad_if_smaller(image, self.size), pad_if_smaller(target, self.size, fill=255)
        top = int(torch.randint(image.height - self.size + 1, ()))
        left = int(torch.randint(image.width - self.size + 1, ()))
        box = top, left, self.size, self.size
        return F.crop(image, *box), F.crop(target, *box)


class ToTensor:
    def __call__(self, image, target):
        return F.pil_to_tensor(image), F.pil_to_tensor(target).squeeze(0).to(torch.int64)


class Normalize:
    def __call__(self, image, target):
        image = F.convert_image_dtype(image, torch.float)
        return F.normalize(image, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)), target


def pad_if_smaller(image, size, fill=0):
    right, bottom = max(0, size - image.width), max(0, size - image.height)
    return F.pad(image, (0, 0, right, bottom), fill=fill) if right or bottom else image


class Segmentation(Dataset):
    def __init__(self, root, transforms):
        self.images = sorted(Path(root, "train").rglob("*.jpg"))
        self.masks = [Path(root, "masks", f"{path.stem}.png") for path in self.images]
        self.transforms = transforms

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = Image.open(self.images[index]).convert("RGB")
        return self.transforms(image, Image.open(self.masks[index]))


def cat_list(images, fill_value=0):
    size = tuple(max(sizes) for sizes in zip(*(image.shape for image in images)))
    batched = images[0].new(len(images), *size).fill_(fill_value)
    for image, pad in zip(images, batched):
        pad[..., : image.shape[-2], : image.shape[-1]].copy_(image)
    return batched


def collate_fn(batch):
    images, targets = zip(*batch)
    return cat_list(images), cat_list(targets, fill_value=255)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", help="folder with train, and masks by the names of its images")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    steps = [RandomResize(60, 240), RandomHorizontalFlip(0.5), RandomCrop(96), ToTensor(), Normalize()]
    dataset = Segmentation(args.data, Compose(steps))
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=RandomSampler(dataset),
        num_workers=args.workers,
        collate_fn=collate_fn,
        drop_last=True,
    )
    layers = [nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 4, 3, 1, 1), nn.Upsample(scale_factor=2)]
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(args.epochs):
        for step, (image, target) in zip(range(args.steps), loader):
            loss = nn.functional.cross_entropy(model(image), target, ignore_index=255)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"Epoch: [{epoch}] step {step} loss: {loss.item():.6f}")


if __name__ == "__main__":
    main()
