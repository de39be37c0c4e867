"""Two views of each pattern, told from those of others, with Accelerate. Healthy: the step is the limit.

Shows: the only worker waits most of the time, though each pattern takes two views.
"""

# expected: healthy
# needs: accelerate

import argparse
import copy
import time

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

PATTERNS, SIDE, CODES = 1600, 40, 4096


class Views(IterableDataset):
    """Pairs of a pattern's views: shifted, mirrored, and with other contrast."""

    def __init__(self):
        rng = np.random.default_rng(29)
        rough = rng.standard_normal((PATTERNS // 4, SIDE + 8, SIDE + 8), dtype=np.float32)
        self.patterns = (rough + np.roll(rough, 1, 1) + np.roll(rough, 1, 2)) / 3

    def view(self, pattern, rng):
        top, left = rng.integers(8, size=2)
        view = pattern[top : top + SIDE, left : left + SIDE]
        if rng.random() < 0.5:
            view = view[:, ::-1]
        view = view * rng.uniform(0.6, 1.4) + 0.1 * rng.standard_normal((SIDE, SIDE), dtype=np.float32)
        return torch.from_numpy(view.astype(np.float32))[None]

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rng = np.random.default_rng()
        for number in rng.permutation(PATTERNS)[worker::workers]:
            pattern = self.patterns[number % len(self.patterns)]
            yield self.view(pattern, rng), self.view(pattern, rng)


def make_encoder(width=24):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(2 * width, 2 * width, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Views(), batch_size=args.batch_size, num_workers=1, persistent_workers=True)
    encoder = make_encoder()
    encoder(torch.zeros(1, 1, SIDE, SIDE))
    slow = copy.deepcopy(encoder).requires_grad_(False)
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)
    encoder, optimizer, loader = accelerator.prepare(encoder, optimizer, loader)
    codes = nn.functional.normalize(torch.randn(CODES, 64))
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for first, second in loader:
            queries = nn.functional.normalize(encoder(first))
            with torch.no_grad():
                for old, new in zip(slow.parameters(), encoder.parameters(), strict=True):
                    old.lerp_(new, 0.01)
                keys = nn.functional.normalize(slow(second))
            scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ codes.T], dim=1) / 0.1
            loss = nn.functional.cross_entropy(scores, torch.zeros(len(first), dtype=torch.long))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            codes = torch.cat([keys, codes])[:CODES]
            seen += len(first)
        rate = seen / (time.perf_counter() - start)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
