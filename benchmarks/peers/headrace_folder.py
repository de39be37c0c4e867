"""Headrace over the folder as it is: torchvision's own transforms, files unchanged, nothing beside them."""

from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from peer_run import BATCH_SIZE, MEAN, SIZE, STD

ABOUT = "bit for bit Pillow's antialiased bilinear"
PACKAGES = ("headrace", "torch", "torchvision", "pillow")


def prepare(folder, work):
    return sorted(folder.glob("*/*.jpg"))


def transform(dtype):
    """The benchmark's, in torchvision's own classes."""
    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
    if dtype == "float32":
        steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    else:
        steps.append(transforms.PILToTensor())
    return transforms.Compose(steps)


def make(kind, folder, dtype, threads, **settings):
    """A DataLoader of that kind over the folder."""
    dataset = ImageFolder(folder, transform(dtype))
    return kind(dataset, batch_size=BATCH_SIZE, shuffle=True, num_workers=threads, **settings)


def loader(folder, work, dtype, threads, **settings):
    batches = make(headrace.DataLoader, folder, dtype, threads, **settings)
    return lambda: (images for images, _ in batches)
