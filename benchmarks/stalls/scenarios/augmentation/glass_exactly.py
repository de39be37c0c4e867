"""Traffic signs through dirty windows, with timm. Bottleneck: an exact GlassBlur swaps pixel by pixel.

Shows: workers compute in a loop in Python, in a file of albumentations; their own code costs little.
Fix: the fast mode, or another blur.
"""

# expected: transform
# names: GlassBlur | glass_blur | transform(image
# needs: timm albumentations cv2
# fix:
# -            albumentations.GlassBlur(sigma=0.7, max_delta=2, iterations=2, mode="exact", p=0.8),
# +            albumentations.GlassBlur(sigma=0.7, max_delta=2, iterations=2, mode="fast", p=0.8),

import argparse
import time

import albumentations
import cv2
import numpy as np
import timm
import timm.optim
import torch
import torch.nn as nn
from albumentations.pytorch import ToTensorV2
from timm.utils import AverageMeter, accuracy
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser(description="Traffic signs")
parser.add_argument("--data", metavar="DIR", help="unused, signs are drawn")
parser.add_argument("--model", default="mobilenetv3_small_050", type=str, metavar="MODEL")
parser.add_argument("--epochs", type=int, default=10, metavar="N")
parser.add_argument("-b", "--batch-size", type=int, default=24, metavar="N")
parser.add_argument("--img-size", type=int, default=64, metavar="N")
parser.add_argument("--opt", default="adamw", type=str)
parser.add_argument("--lr", type=float, default=2e-3)
parser.add_argument("-j", "--workers", type=int, default=2, metavar="N")
parser.add_argument("--seed", type=int, default=43)


def draw_sign(rng, shape):
    """One sign of 72 x 72: the shape tells the class."""
    sign = np.full((72, 72, 3), rng.integers(60, 200, 3), dtype=np.uint8)
    color = tuple(int(value) for value in rng.integers(0, 255, 3))
    if shape == 0:
        cv2.circle(sign, (36, 36), 26, color, -1)
    elif shape < 6:
        angles = np.arange(shape + 2) * 2 * np.pi / (shape + 2) + rng.uniform(0, 0.3)
        corners = np.stack([36 + 28 * np.cos(angles), 36 + 28 * np.sin(angles)], axis=1)
        cv2.fillPoly(sign, [corners.astype(np.int32)], color)
    else:
        cv2.rectangle(sign, (6, 26), (66, 46), color, -1)
    return sign


class Signs(Dataset):
    def __init__(self, size, transform, seed):
        rng = np.random.default_rng(seed)
        self.targets = rng.integers(0, 7, size)
        self.images = [draw_sign(rng, target) for target in self.targets]
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.transform(image=self.images[index])["image"]
        return image, int(self.targets[index])


def create_train_transform(img_size):
    return albumentations.Compose(
        [
            albumentations.RandomCrop(img_size, img_size),
            albumentations.HorizontalFlip(p=0.5),
            albumentations.RandomBrightnessContrast(p=0.5),
            albumentations.GlassBlur(sigma=0.7, max_delta=2, iterations=2, mode="exact", p=0.8),
            albumentations.Normalize(),
            ToTensorV2(),
        ]
    )


def train_one_epoch(epoch, model, loader, optimizer, loss_fn):
    losses_m, top1_m = AverageMeter(), AverageMeter()
    model.train()
    end = time.time()
    for input, target in loader:
        output = model(input)
        loss = loss_fn(output, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses_m.update(loss.item(), input.size(0))
        top1_m.update(accuracy(output, target)[0].item(), input.size(0))
    rate = losses_m.count / (time.time() - end)
    print(
        f"Train: {epoch} Loss: {losses_m.avg:.3f} Acc@1: {top1_m.avg:.2f} Rate: {rate:.1f} samples/s",
        flush=True,
    )


def main():
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    dataset = Signs(744, create_train_transform(args.img_size), args.seed)
    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
        persistent_workers=args.workers > 0,
    )
    model = timm.create_model(args.model, pretrained=False, num_classes=7)
    optimizer = timm.optim.create_optimizer_v2(model, opt=args.opt, lr=args.lr, weight_decay=0.05)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in range(args.epochs):
        train_one_epoch(epoch, model, loader, optimizer, loss_fn)


if __name__ == "__main__":
    main()
