"""Classification as in torchvision's references: presets around v2 transforms, mixup in collate_fn."""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler
from torch.utils.data.dataloader import default_collate
from torchvision import models
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.functional import InterpolationMode

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class ClassificationPresetTrain:
    def __init__(self, *, crop_size, policy, erase):
        steps = [v2.RandomResizedCrop(crop_size, interpolation=InterpolationMode.BILINEAR, antialias=True)]
        steps.append(v2.RandomHorizontalFlip(0.5))
        if policy == "ra":
            steps.append(v2.RandAugment(interpolation=InterpolationMode.BILINEAR, magnitude=9))
        elif policy == "ta_wide":
            steps.append(v2.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR))
        steps += [v2.PILToTensor(), v2.ToDtype(torch.float, scale=True), v2.Normalize(mean=MEAN, std=STD)]
        if erase > 0:
            steps.append(v2.RandomErasing(p=erase))
        steps.append(v2.ToPureTensor())
        self.transforms = v2.Compose(steps)

    def __call__(self, image):
        return self.transforms(image)


class ClassificationPresetEval:
    def __init__(self, *, crop_size, resize_size):
        self.transforms = v2.Compose(
            [
                v2.Resize(resize_size, antialias=True),
                v2.CenterCrop(crop_size),
                v2.PILToTensor(),
                v2.ToDtype(torch.float, scale=True),
                v2.Normalize(mean=MEAN, std=STD),
                v2.ToPureTensor(),
            ]
        )

    def __call__(self, image):
        return self.transforms(image)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--auto-augment", default="ta_wide")
    parser.add_argument("--random-erase", type=float, default=0.1)
    parser.add_argument("--mixup", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    preset = ClassificationPresetTrain(crop_size=64, policy=args.auto_augment, erase=args.random_erase)
    dataset = ImageFolder(Path(args.data, "train"), preset)
    dataset_test = ImageFolder(Path(args.data, "val"), ClassificationPresetEval(crop_size=64, resize_size=72))
    collate_fn = None
    if args.mixup:
        mix = v2.RandomChoice([v2.MixUp(alpha=0.2, num_classes=10), v2.CutMix(alpha=1.0, num_classes=10)])

        def collate_fn(batch):
            return mix(*default_collate(batch))

    loader = DataLoader(
        dataset,
        batch_size=args.batch_size,
        sampler=RandomSampler(dataset),
        num_workers=args.workers,
        pin_memory=True,
        collate_fn=collate_fn,
    )
    loader_test = DataLoader(
        dataset_test,
        batch_size=args.batch_size,
        sampler=SequentialSampler(dataset_test),
        num_workers=args.workers,
        pin_memory=True,
    )
    model = models.mobilenet_v3_small(num_classes=10)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    for epoch in range(args.epochs):
        model.train()
        for step, (image, target) in zip(range(args.steps), loader):
            loss = criterion(model(image), target)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            print(f"Epoch: [{epoch}] step {step} loss: {loss.item():.4f}")
        model.eval()
        with torch.inference_mode():
            right = sum(int((model(image).argmax(1) == target).sum()) for image, target in loader_test)
        print(f"Test: Acc@1 {100 * right / len(dataset_test):.3f}")


if __name__ == "__main__":
    main()
