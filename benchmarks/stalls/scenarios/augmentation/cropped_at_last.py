"""Land use in parts of aerial tiles, with Accelerate. Bottleneck: whole tiles are augmented, then cropped.

Shows: both workers are busy all the time in transforms that treat 40 times as many pixels as are used.
Fix: crop first.
"""

# expected: transform
# names: GaussianNoise | Normalize | ToDtype | RandomCrop | Compose | build_transform | self.transform
# needs: accelerate torchvision
# fix:
# -        v2.ToImage(),
# +        v2.ToImage(),
# +        v2.RandomCrop(size),
#
# -        v2.GaussianNoise(sigma=0.03),
# -        v2.RandomCrop(size),
# +        v2.GaussianNoise(sigma=0.03),

import argparse
import time

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

TILES, SIDE, USES, PARTS = 40, 608, 8, 12


def make_tiles():
    """(tiles, SIDE, SIDE, 3): fields, forests and towns as blocks of a few pixels."""
    rng = np.random.default_rng(63)
    coarse = rng.integers(0, 256, (TILES, SIDE // 16, SIDE // 16, 3), dtype=np.uint8)
    return coarse.repeat(16, axis=1).repeat(16, axis=2), rng.integers(0, USES, TILES)


def build_transform(size):
    steps = [
        v2.ToImage(),
        v2.RandomHorizontalFlip(),
        v2.RandomVerticalFlip(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize((0.37, 0.39, 0.34), (0.21, 0.19, 0.18)),
        v2.GaussianNoise(sigma=0.03),
        v2.RandomCrop(size),
    ]
    return v2.Compose(steps)


class AerialParts(Dataset):
    def __init__(self, transform):
        self.tiles, self.uses = make_tiles()
        self.transform = transform

    def __len__(self):
        return TILES * PARTS

    def __getitem__(self, index):
        tile = index // PARTS
        return self.transform(self.tiles[tile]), self.uses[tile]


def conv_block(inputs, outputs, stride=2):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.SiLU(inplace=True)
    )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--crop", type=int, default=96)
    args = parser.parse_args()

    torch.set_num_threads(1)
    set_seed(63)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(
        AerialParts(build_transform(args.crop)),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
    )
    model = nn.Sequential(
        conv_block(3, 20), conv_block(20, 28, stride=1), conv_block(28, 48), conv_block(48, 64),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, USES),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=4e-3, total_steps=max(args.epochs, 1) * len(loader)
    )
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in range(args.epochs):
        tic = time.perf_counter()
        correct = count = 0
        for parts, uses in loader:
            with accelerator.accumulate(model):
                scores = model(parts)
                accelerator.backward(nn.functional.cross_entropy(scores, uses))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            correct += (scores.argmax(1) == uses).sum().item()
            count += len(uses)
        rate = count / (time.perf_counter() - tic)
        accelerator.print(f"[{epoch}] accuracy {correct / count:.3f}  {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
