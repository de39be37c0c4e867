"""Leaves with a recipe of timm: RandAugment, Mixup, averaged weights. Healthy: the step is the limit.

Shows: two workers augment with Pillow and are ahead all the same.
"""

# expected: healthy
# needs: timm torchvision

import argparse
import logging
import time

import numpy as np
import timm
import torch
from PIL import Image, ImageDraw
from timm.data import Mixup, create_transform
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3
from torch.utils.data import DataLoader, Dataset

_logger = logging.getLogger("train")
CLASSES = 8


def draw_leaf(rng, kind):
    leaf = Image.new("RGB", (96, 96), tuple(int(value) for value in rng.integers(180, 256, 3)))
    pen = ImageDraw.Draw(leaf)
    angles = np.linspace(0, 2 * np.pi, 60)
    radius = 30 + 10 * np.cos(angles * (kind + 1)) + rng.normal(0, 1, 60)
    outline = np.stack([48 + radius * np.cos(angles), 48 + radius * np.sin(angles)], axis=1)
    color = (int(rng.integers(20, 120)), int(rng.integers(90, 200)), int(rng.integers(10, 80)))
    pen.polygon([tuple(point) for point in outline], fill=color)
    pen.line([48, 14, 48, 82], fill=(90, 70, 40), width=2)
    return leaf


class Leaves(Dataset):
    def __init__(self, size, transform):
        rng = np.random.default_rng(50)
        self.kinds = rng.integers(0, CLASSES, size).tolist()
        self.images = [draw_leaf(rng, kind) for kind in self.kinds]
        self.transform = transform

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.transform(self.images[index]), self.kinds[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--model", default="resnet10t")
    parser.add_argument("--aa", default="rand-m6-mstd0.5-inc1")
    parser.add_argument("--mixup", type=float, default=0.2)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()

    logging.basicConfig(level=logging.INFO)
    torch.manual_seed(42)
    torch.set_num_threads(1)
    transform = create_transform(64, is_training=True, auto_augment=args.aa, interpolation="bilinear")
    loader = DataLoader(
        Leaves(360, transform),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        persistent_workers=True,
        drop_last=True,
    )
    mixup_fn = Mixup(mixup_alpha=args.mixup, num_classes=CLASSES, label_smoothing=0.1)
    model = timm.create_model(args.model, pretrained=False, num_classes=CLASSES)
    model_ema = ModelEmaV3(model, decay=0.99)
    optimizer = create_optimizer_v2(model, opt="lamb", lr=4e-3, weight_decay=0.02)
    scheduler = CosineLRScheduler(optimizer, t_initial=max(1, args.epochs), warmup_t=1, warmup_lr_init=1e-4)
    criterion = SoftTargetCrossEntropy()

    for epoch in range(args.epochs):
        model.train()
        losses = AverageMeter()
        start = time.time()
        for batch_idx, (samples, targets) in enumerate(loader):
            samples, targets = mixup_fn(samples, targets)
            loss = criterion(model(samples), targets)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            model_ema.update(model)
            losses.update(loss.item(), len(samples))
            if batch_idx % 15 == 0:
                _logger.info("Train: %d [%d/%d] Loss: %.4f", epoch, batch_idx, len(loader), losses.avg)
        scheduler.step(epoch + 1)
        rate = losses.count / (time.time() - start)
        print(f"Train: {epoch} Loss: {losses.avg:.4f} {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
