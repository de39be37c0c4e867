"""Headrace over the folder as it is: torchvision's own transforms, the files unchanged, nothing written beside them."""

import headrace
import torch
from peer_run import BATCH_SIZE, MEAN, SIZE, STD
from torchvision import transforms
from torchvision.datasets import ImageFolder

ABOUT = "bit for bit Pillow's antialiased bilinear"
PACKAGES = ("headrace", "torch", "torchvision", "pillow")


def prepare(folder, work):
    return sorted(folder.glob("*/*.jpg"))


def loader(folder, work, dtype, threads, **settings):
    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
    if dtype == "float32":
        steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    else:
        steps.append(transforms.PILToTensor())
    batches = headrace.DataLoader(
        ImageFolder(folder, transforms.Compose(steps)),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=threads,
        generator=torch.Generator().manual_seed(0),
        **settings,
    )
    return lambda: (images for images, _ in batches)
