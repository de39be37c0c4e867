"""torch's DataLoader over ImageFolder: PIL images, torchvision v1 transforms, what most training scripts run.

Tried: prefetch factors of 2 and 4, 2 and 3 workers on 2 cores: 2 and 2 are best by a little.
"""

import torch
from torchvision import transforms
from torchvision.datasets import ImageFolder

from peer_run import BATCH_SIZE, MEAN, SIZE, STD

ABOUT = "Pillow, antialiased bilinear"
PACKAGES = ("torch", "torchvision", "pillow")


def prepare(folder, work):
    return sorted(folder.glob("*/*.jpg"))


def loader(folder, work, dtype, threads, prefetch_factor=2):
    steps = [transforms.RandomResizedCrop(SIZE), transforms.RandomHorizontalFlip()]
    if dtype == "float32":
        steps += [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
    else:
        steps.append(transforms.PILToTensor())
    batches = torch.utils.data.DataLoader(
        ImageFolder(folder, transforms.Compose(steps)),
        batch_size=BATCH_SIZE,
        shuffle=True,
        num_workers=threads,
        persistent_workers=True,
        prefetch_factor=prefetch_factor,
    )
    return lambda: (images for images, _ in batches)
