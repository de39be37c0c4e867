"""Cars seen again by other cameras. Bottleneck: for another view, the whole flat folder is listed each time.

Shows: both workers are in pathlib's glob() most of the time; images are small and decoded quickly.
Fix: group the files by car once, in __init__.
"""

# expected: read dataset
# names: glob | another_view | __getitem__
# fix:
# -        self.crops = sorted(self.folder.glob("*.jpg"))
# +        self.crops = sorted(self.folder.glob("*.jpg"))
# +        self.views = {}
# +        for crop in self.crops:
# +            self.views.setdefault(parse_name(crop)[0], []).append(crop)
#
# -        views = [view for view in self.folder.glob(f"{car}_*.jpg") if parse_name(view)[1] != camera]
# +        views = [view for view in self.views[car] if parse_name(view)[1] != camera]

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

CARS, CAMERAS, SHOTS, HEIGHT, WIDTH = 750, 4, 2, 48, 80


def write_crops(folder):
    """Files like 0002_c1_00.jpg: the number of the car, the camera, and the number of the shot."""
    rng = np.random.default_rng(61)
    partial = folder.with_name(folder.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    for car in range(CARS):
        paint = rng.integers(0, 256, (3, 5, 3), dtype=np.uint8)
        for camera in range(CAMERAS):
            light = rng.uniform(0.5, 1.0)
            for shot in range(SHOTS):
                image = Image.fromarray((paint * light).astype(np.uint8)).resize((WIDTH, HEIGHT))
                image.save(partial / f"{car:04}_c{camera}_{shot:02}.jpg", quality=85)
    partial.rename(folder)


def parse_name(path):
    car, camera, _ = path.stem.split("_")
    return car, camera


class CrossCameraPairs(Dataset):
    """An image of a car, and an image of the same car from another camera."""

    def __init__(self, folder):
        self.folder = folder
        self.crops = sorted(self.folder.glob("*.jpg"))

    def __len__(self):
        return len(self.crops)

    def another_view(self, crop):
        car, camera = parse_name(crop)
        views = [view for view in self.folder.glob(f"{car}_*.jpg") if parse_name(view)[1] != camera]
        return random.choice(views)

    def load(self, path):
        pixels = np.array(Image.open(path).convert("RGB"), dtype=np.float32) / 127.5 - 1
        if random.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())

    def __getitem__(self, index):
        crop = self.crops[index]
        return self.load(crop), self.load(self.another_view(crop)), int(parse_name(crop)[0])


class Embedder(nn.Module):
    def __init__(self, width=16, size=64):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=2, padding=2), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d((2, 4)),
            nn.Flatten(), nn.Linear(16 * width, size),
        )  # fmt: skip

    def forward(self, images):
        return nn.functional.normalize(self.net(images), dim=1)


def pair_loss(first, second, cars, temperature=0.1):
    """Each view has to find the other one of its car among those of the batch."""
    similar = first @ second.T / temperature
    same = cars[:, None] == cars
    same.fill_diagonal_(False)
    target = torch.arange(len(cars))
    return nn.functional.cross_entropy(similar.masked_fill(same, -1e4), target)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--per-epoch", type=int, default=960)
    args = parser.parse_args()

    folder = Path(args.data) / "car-views"
    if not folder.exists():
        write_crops(folder)
    torch.set_num_threads(1)
    pairs = CrossCameraPairs(folder)
    sampler = torch.utils.data.RandomSampler(pairs, num_samples=args.per_epoch)
    loader = DataLoader(pairs, args.batch_size, sampler=sampler, num_workers=2, persistent_workers=True)
    model = Embedder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        start, seen, total = time.perf_counter(), 0, 0.0
        for first, second, cars in loader:
            loss = pair_loss(model(first), model(second), cars)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(cars)
            seen += len(cars)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / seen:.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
