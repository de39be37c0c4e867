"""DINO: two large and several small crops of each image, by transforms with PIL's own filters."""

import argparse
import random
from pathlib import Path

import torch
from PIL import Image, ImageFilter, ImageOps
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, models, transforms


class GaussianBlur:
    def __init__(self, p=0.5, radius_min=0.1, radius_max=2.0):
        self.prob, self.radius_min, self.radius_max = p, radius_min, radius_max

    def __call__(self, img):
        if not random.random() <= self.prob:
            return img
        return img.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max)))


class Solarization:
    def __init__(self, p):
        self.p = p

    def __call__(self, img):
        return ImageOps.solarize(img) if random.random() < self.p else img


class DataAugmentationDINO:
    def __init__(self, global_crops_scale, local_crops_scale, local_crops_number):
        flip_and_color_jitter = transforms.Compose(
            [
                transforms.RandomHorizontalFlip(p=0.5),
                transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                transforms.RandomGrayscale(p=0.2),
            ]
        )
        normalize = transforms.Compose(
            [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        )

        def crop(size, scale, *rest):
            first = transforms.RandomResizedCrop(size, scale=scale, interpolation=Image.BICUBIC)
            return transforms.Compose([first, flip_and_color_jitter, *rest, normalize])

        self.global_transfo1 = crop(64, global_crops_scale, GaussianBlur(1.0))
        self.global_transfo2 = crop(64, global_crops_scale, GaussianBlur(0.1), Solarization(0.2))
        self.local_crops_number = local_crops_number
        self.local_transfo = crop(32, local_crops_scale, GaussianBlur(p=0.5))

    def __call__(self, image):
        crops = [self.global_transfo1(image), self.global_transfo2(image)]
        return crops + [self.local_transfo(image) for _ in range(self.local_crops_number)]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--batch_size_per_gpu", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--local_crops_number", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    transform = DataAugmentationDINO((0.4, 1.0), (0.05, 0.4), args.local_crops_number)
    dataset = datasets.ImageFolder(Path(args.data, "train"), transform=transform)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
    data_loader = DataLoader(
        dataset,
        sampler=sampler,
        batch_size=args.batch_size_per_gpu,
        num_workers=args.num_workers,
        pin_memory=True,
        drop_last=True,
    )
    student, teacher = (models.shufflenet_v2_x0_5(num_classes=32) for _ in range(2))
    teacher.load_state_dict(student.state_dict())
    optimizer = torch.optim.AdamW(student.parameters(), 5e-4)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for step, (images, _) in zip(range(args.steps), data_loader):
            with torch.no_grad():
                targets = [nn.functional.softmax(teacher(image) / 0.04, dim=-1) for image in images[:2]]
            outputs = [nn.functional.log_softmax(student(image) / 0.1, dim=-1) for image in images]
            pairs = [(t, o) for i, t in enumerate(targets) for j, o in enumerate(outputs) if i != j]
            loss = sum(-(t * o).sum(-1).mean() for t, o in pairs) / len(pairs)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(teacher.parameters(), student.parameters()):
                    slow.mul_(0.996).add_(fast, alpha=0.004)
            print(f"Epoch: [{epoch}] step {step} loss: {loss.item():.6f}")


if __name__ == "__main__":
    main()
