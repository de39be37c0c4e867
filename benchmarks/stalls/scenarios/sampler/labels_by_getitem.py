"""Moles, most of them harmless, balanced by a sampler. Bottleneck: for their labels, it asks for all samples.

Shows: each epoch begins with seconds in which the training process decodes and augments images, while its
workers wait for indices.
Fix: use the labels that the dataset has anyway.
"""

# expected: sampler
# names: self.dataset[index] | BalancedSampler | by_label | __iter__
# needs: torchvision
# fix:
# -        for index in range(len(self.dataset)):
# -            by_label[self.dataset[index][1]].append(index)
# +        for index, (_, label) in enumerate(self.dataset.items):
# +            by_label[label].append(index)

import argparse
import collections
import io
import pickle
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler
from torchvision import transforms

LABELS, RARE = ("nevus", "keratosis", "melanoma"), (0.85, 0.1, 0.05)
IMAGES, SIDE = 2400, 160


def draw_mole(rng, label):
    skin = Image.new("RGB", (SIDE, SIDE), (222, 176, 150))
    pen = ImageDraw.Draw(skin)
    x, y, size = rng.integers(50, 110), rng.integers(50, 110), rng.integers(15, 35)
    for _ in range(1 + 3 * label):
        dx, dy = rng.integers(-9, 10, 2)
        brown = tuple(int(value) for value in rng.integers((60, 20, 10), (140, 80, 60)))
        pen.ellipse([x + dx - size, y + dy - size, x + dx + size, y + dy + size], fill=brown)
    return skin


def make_items(path):
    """Pickles a list of (JPEG file, label)."""
    rng = np.random.default_rng(66)
    noise = Image.effect_noise((SIDE, SIDE), 30).convert("RGB")
    items = []
    for label in rng.choice(len(LABELS), IMAGES, p=RARE).tolist():
        out = io.BytesIO()
        Image.blend(draw_mole(rng, label), noise, 0.2).save(out, "JPEG", quality=90)
        items.append((out.getvalue(), label))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(items))


class Moles(Dataset):
    def __init__(self, path, transform=None):
        with open(path, "rb") as file:
            self.items = pickle.load(file)
        self.transform = transform

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        file, label = self.items[index]
        image = Image.open(io.BytesIO(file)).convert("RGB")
        return self.transform(image) if self.transform else image, label


class BalancedSampler(Sampler):
    """As many samples of each label, in random order; those of rare labels are repeated."""

    def __init__(self, dataset, num_samples):
        self.dataset = dataset
        self.num_samples = num_samples

    def __len__(self):
        return self.num_samples

    def __iter__(self):
        by_label = collections.defaultdict(list)
        for index in range(len(self.dataset)):
            by_label[self.dataset[index][1]].append(index)
        share = -(-self.num_samples // len(by_label))
        chosen = [index for indices in by_label.values() for index in random.choices(indices, k=share)]
        random.shuffle(chosen)
        yield from chosen[: self.num_samples]


class MoleNet(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 7, stride=4, padding=3)
        self.blocks = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(3))
        self.head = nn.Linear(width, len(LABELS))

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for conv, norm in zip(self.blocks, self.norms, strict=True):
            x = x + torch.relu(norm(conv(x)))
        return self.head(x.mean((2, 3)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--samples", type=int, default=640, help="per epoch")
    args = parser.parse_args()

    path = Path(args.data) / "moles.pickle"
    if not path.exists():
        make_items(path)
    torch.set_num_threads(1)
    transform = transforms.Compose(
        [
            transforms.RandomAffine(180, scale=(0.8, 1.2)),
            transforms.CenterCrop(112),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize([0.7, 0.56, 0.48], [0.15, 0.15, 0.16]),
        ]
    )
    moles = Moles(path, transform)
    loader = DataLoader(
        moles,
        batch_size=args.batch_size,
        sampler=BalancedSampler(moles, args.samples),
        num_workers=2,
        persistent_workers=True,
    )
    model = MoleNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    for epoch in range(args.epochs):
        begin = time.perf_counter()
        losses = []
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        rate = args.samples / (time.perf_counter() - begin)
        print(f"epoch {epoch}: loss {np.mean(losses):.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
