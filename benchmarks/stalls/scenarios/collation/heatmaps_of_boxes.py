"""Cells as points of a heatmap. Bottleneck: collate draws each cell as a bell curve over the whole heatmap.

Shows: both workers compute in `draw_cell` all the time, called by collate; samples cost next to nothing.
Fix: draw it only within its radius.
"""

# expected: collate
# names: draw_cell | collate_cells | np.mgrid | np.exp
# needs: accelerate
# fix:
# -    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
# -    curve = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * (radius / 3) ** 2))
# -    np.maximum(heatmap, curve, out=heatmap)
# +    top, left = max(0, row - radius), max(0, column - radius)
# +    part = heatmap[top : row + radius + 1, left : column + radius + 1]
# +    rows, columns = np.ogrid[top : top + part.shape[0], left : left + part.shape[1]]
# +    curve = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * (radius / 3) ** 2))
# +    np.maximum(part, curve, out=part)

import argparse
import time

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

SLIDES, SIDE, CELLS = 1600, 64, 160


class Slides(Dataset):
    """Images of 128 x 128 pixels under the microscope, with the places of cells in them."""

    def __init__(self):
        rng = np.random.default_rng(18)
        self.images = rng.integers(0, 256, (SLIDES // 4, 1, 2 * SIDE, 2 * SIDE), dtype=np.uint8)
        self.cells = rng.integers((0, 0, 3), (SIDE, SIDE, 8), (SLIDES // 4, CELLS, 3))

    def __len__(self):
        return SLIDES

    def __getitem__(self, index):
        turn, number = divmod(index, SLIDES // 4)
        image, cells = self.images[number], self.cells[number]
        if turn % 2:
            image, cells = image[:, ::-1], cells * (-1, 1, 1) + (SIDE - 1, 0, 0)
        if turn // 2:
            image, cells = image[:, :, ::-1], cells * (1, -1, 1) + (0, SIDE - 1, 0)
        return image, cells


def draw_cell(heatmap, row, column, radius):
    rows, columns = np.mgrid[0:SIDE, 0:SIDE]
    curve = np.exp(-((rows - row) ** 2 + (columns - column) ** 2) / (2 * (radius / 3) ** 2))
    np.maximum(heatmap, curve, out=heatmap)


def collate_cells(samples):
    heatmaps = np.zeros((len(samples), SIDE, SIDE), np.float32)
    for heatmap, (_, cells) in zip(heatmaps, samples, strict=True):
        for row, column, radius in cells.tolist():
            draw_cell(heatmap, row, column, radius)
    images = np.stack([image for image, _ in samples])
    return torch.from_numpy(images).float() / 255, torch.from_numpy(heatmaps)


def focal_loss(scores, heatmaps):
    """The loss of CenterNet: pixels near a cell count less as negatives."""
    positive = heatmaps > 0.99
    right = nn.functional.logsigmoid(scores) * (1 - scores.sigmoid()) ** 2
    wrong = nn.functional.logsigmoid(-scores) * scores.sigmoid() ** 2 * (1 - heatmaps) ** 4
    return -torch.where(positive, right, wrong).sum() / positive.sum().clamp(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    loader = DataLoader(
        Slides(), args.batch_size, shuffle=True, collate_fn=collate_cells, num_workers=2,
        persistent_workers=True,
    )  # fmt: skip
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(),
        nn.Conv2d(6, 1, 1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for images, heatmaps in loader:
            loss = focal_loss(model(images).squeeze(1), heatmaps)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            seen += len(images)
        rate = seen / (time.perf_counter() - start)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
