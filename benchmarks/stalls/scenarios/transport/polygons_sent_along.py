"""Detection on aerial images. Bottleneck: workers send the polygons of all fields along, which nobody uses.

Shows: samples cost next to nothing; workers pickle long lists of numbers, the training loop unpickles them.
Fix: return the boxes only.
"""

# expected: transfer
# names: polygons | __getitem__ | keep_lists
# fix:
# -        target = {**self.annotations[index], "image_id": index}
# +        target = {"box": self.annotations[index]["box"], "image_id": index}

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, IMAGES, FIELDS, CORNERS = 48, 8000, 30, 150


class Fields(Dataset):
    """Tiles with the outlines of fields, as the annotation tool exports them, and the box of the largest."""

    def __init__(self):
        rng = np.random.default_rng(11)
        self.tiles = rng.integers(0, 256, (IMAGES, 3, SIDE, SIDE), dtype=np.uint8)
        self.annotations = []
        outlines = [
            [rng.random(2 * CORNERS).round(3).tolist() for _ in range(FIELDS)] for _ in range(IMAGES // 100)
        ]
        for number in range(IMAGES):
            box = rng.random(4).astype(np.float32)
            self.annotations.append({"box": box, "polygons": outlines[number % len(outlines)]})

    def __len__(self):
        return IMAGES

    def __getitem__(self, index):
        target = {**self.annotations[index], "image_id": index}
        return torch.from_numpy(self.tiles[index]), target


def keep_lists(samples):
    tiles, targets = zip(*samples, strict=True)
    return torch.stack(tiles), targets


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(
        Fields(),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=2,
        collate_fn=keep_lists,
        persistent_workers=True,
    )
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 4),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for tiles, targets in loader:
            boxes = torch.from_numpy(np.stack([target["box"] for target in targets]))
            loss = nn.functional.l1_loss(model(tiles.float() / 255), boxes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(tiles)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
