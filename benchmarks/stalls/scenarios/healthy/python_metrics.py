"""Segmentation of small masks. The loader is healthy; confusions are counted in Python, pixel by pixel.

Shows: steps don't wait; most of a step is spent in `count_confusions`.
Fix: nothing in the loader; torch.bincount.
"""

# expected: healthy step

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLASSES, SIDE = 4, 32


class Masks(Dataset):
    def __len__(self):
        return 2000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        mask = torch.randint(0, CLASSES, (SIDE, SIDE), generator=generator)
        return mask[None] + torch.randn(1, SIDE, SIDE, generator=generator), mask


def count_confusions(scores, masks):
    counts, missed = [[0] * CLASSES for _ in range(CLASSES)], [0] * CLASSES
    for guess, truth in zip(scores.argmax(1).flatten().tolist(), masks.flatten().tolist(), strict=True):
        counts[truth][guess] += 1
        if guess != truth:
            missed[truth] += 1
    return counts, missed


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: masks are made up")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Masks(), args.batch_size, num_workers=1, persistent_workers=True)
    model = nn.Conv2d(1, CLASSES, 3, padding=1)
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for images, masks in loader:
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, masks)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            count_confusions(scores, masks)
            seen += len(images)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
