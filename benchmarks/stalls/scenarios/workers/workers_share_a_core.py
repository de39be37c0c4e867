"""Serial numbers, drawn for an OCR. Bottleneck: worker_init_fn binds all workers to the same core.

Shows: each worker gets half a core, though another is nearly idle.
Fix: leave the placement to the system.
"""

# expected: cores oversubscribed
# names: bind_worker | sched_setaffinity | worker_init_fn
# fix:
# -        worker_init_fn=bind_worker,
# +        worker_init_fn=None,

import argparse
import os
import random
import time

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import nn
from torch.utils.data import DataLoader, Dataset

ALPHABET, LENGTH, PLATES = "0123456789ABCDEFGHKLMNPRSTUVWXYZ", 6, 3200


def bind_worker(_worker_id):
    """Keeps loading away from the cores that train."""
    first = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {first})


class Plates(Dataset):
    """Worn name plates of machines, each drawn when it is needed."""

    def __init__(self):
        self.font = ImageFont.load_default(44)

    def __len__(self):
        return PLATES

    def __getitem__(self, index):
        rng = random.Random(index)
        text = "".join(rng.choices(ALPHABET, k=LENGTH))
        plate = Image.new("L", (256, 80), rng.randint(150, 230))
        pen = ImageDraw.Draw(plate)
        pen.text((rng.randint(4, 28), rng.randint(4, 24)), text, fill=rng.randint(0, 90), font=self.font)
        for _ in range(rng.randint(4, 12)):
            pen.line([rng.randrange(256), rng.randrange(80), rng.randrange(256), rng.randrange(80)], fill=140)
        plate = plate.rotate(rng.uniform(-5, 5), Image.Resampling.BICUBIC, fillcolor=200)
        plate = plate.filter(ImageFilter.GaussianBlur(rng.uniform(0.5, 3)))
        plate = plate.resize((128, 40), Image.Resampling.LANCZOS)
        pixels = torch.from_numpy(np.array(plate, dtype=np.float32))[None] / 255
        return pixels, torch.tensor([ALPHABET.index(letter) for letter in text])


class Reader(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=4), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2), nn.ReLU()
        )
        self.head = nn.LazyLinear(LENGTH * len(ALPHABET))

    def forward(self, pixels):
        return self.head(self.body(pixels).flatten(1)).unflatten(1, (LENGTH, len(ALPHABET)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(
        Plates(),
        args.batch_size,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        worker_init_fn=bind_worker,
    )
    model = Reader()
    model(torch.zeros(1, 1, 40, 128))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen, right = time.perf_counter(), 0, 0
        for pixels, letters in loader:
            scores = model(pixels)
            loss = nn.functional.cross_entropy(scores.flatten(0, 1), letters.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(letters)
            right += (scores.argmax(2) == letters).sum().item()
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: {right / seen / LENGTH:.1%} right, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
