"""Boxes around subjects of photographs. Bottleneck: each is decoded twice, the first time for its size.

Shows: both workers decode JPEG all the time, most of it in `relative_box`.
Fix: Image.open(path).size, which reads the header only.
"""

# expected: decode
# names: relative_box | np.array(Image.open
# data: pictures
# fix:
# -    height, width = np.array(Image.open(path)).shape[:2]
# +    width, height = Image.open(path).size

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 96


def relative_box(path, box):
    """The box in parts of the image's width and height; annotators draw it in pixels."""
    height, width = np.array(Image.open(path)).shape[:2]
    left, top, right, bottom = box
    return [left / width, top / height, right / width, bottom / height]


class Subjects(Dataset):
    def __init__(self, folder, count=2000):
        self.paths = sorted(Path(folder).glob("*/*.jpg"))[:count]
        rng = random.Random(21)
        self.boxes = [(rng.randint(0, 40), rng.randint(0, 40), 160, 160) for _ in self.paths]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        box = torch.tensor(relative_box(path, self.boxes[index]))
        image = Image.open(path)
        image.draft("RGB", (2 * SIDE, 2 * SIDE))
        image = image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if random.random() < 0.5:
            pixels = pixels.flip(2)
            box = torch.stack([1 - box[2], box[1], 1 - box[0], box[3]])
        return {"pixels": pixels, "box": box, "name": path.name}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=20)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(
        Subjects(args.data), args.batch_size, shuffle=True, num_workers=2, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 4), nn.Sigmoid(),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for batch in loader:
            loss = nn.functional.smooth_l1_loss(model(batch["pixels"].float() / 255), batch["box"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(batch["box"])
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
