"""Birds at a feeder; thumbnails are kept once they are made. Healthy: then the step is the limit.

Shows: in the first of 40 epochs, steps wait for a worker that decodes large images; in the others, none does.
"""

# expected: healthy

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, Dataset

BIRDS, SPECIES, SIZE, SIDE = 240, 8, (1280, 960), 96


def take_photographs(folder):
    rng = np.random.default_rng(73)
    garden = Image.effect_noise((320, 240), 50).convert("RGB").resize(SIZE)
    for number in range(BIRDS):
        photograph = garden.copy()
        pen = ImageDraw.Draw(photograph)
        x, y, size = rng.integers(200, 1000), rng.integers(200, 700), rng.integers(80, 200)
        color = tuple(int(value) for value in np.array([30, 90, 200])[rng.permutation(3)])
        pen.ellipse([x - size, y - size // 2, x + size, y + size // 2], fill=color)
        pen.ellipse(
            [x + size - 40, y - size, x + size + 40, y - size + 80 + 5 * (number % SPECIES)], fill=color
        )
        photograph.save(folder / f"{number:03}-{number % SPECIES}.jpg", quality=90)


class Feeder(Dataset):
    def __init__(self, folder):
        self.files = sorted(folder.glob("*.jpg"))
        self.thumbnails = {}

    def __len__(self):
        return len(self.files)

    def thumbnail(self, file):
        if file not in self.thumbnails:
            image = Image.open(file).convert("RGB")
            image = image.resize((SIDE + 16, SIDE + 16), Image.Resampling.LANCZOS)
            self.thumbnails[file] = np.asarray(image).transpose(2, 0, 1)
        return self.thumbnails[file]

    def __getitem__(self, index):
        file = self.files[index]
        top, left = np.random.randint(0, 17, 2)
        pixels = self.thumbnail(file)[:, top : top + SIDE, left : left + SIDE]
        return torch.from_numpy(pixels / np.float32(255)), int(file.stem[-1])


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convs = nn.Sequential(
            nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x):
        return x + self.convs(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    folder = Path(args.data) / "bird-feeder"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        take_photographs(partial)
        partial.rename(folder)
    torch.set_num_threads(1)
    feeder = Feeder(folder)
    loader = DataLoader(feeder, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 48, 5, stride=2, padding=2), Residual(48), nn.MaxPool2d(2), Residual(48), Residual(48),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, SPECIES),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, args.epochs))
    for epoch in range(args.epochs):
        start, seen, total = time.perf_counter(), 0, 0.0
        for images, species in loader:
            loss = nn.functional.cross_entropy(model(images), species)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(species)
            seen += len(species)
        scheduler.step()
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / seen:.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
