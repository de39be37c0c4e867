"""A world model of a moving camera, rendered by own processes. Bottleneck: frames are queued as float64.

Shows: 28 MB per batch are pickled, piped and unpickled; the training process spends more on that than on
its step. Rendering is cheap.
Fix: render and send bytes, and convert them where they arrive.
"""

# expected: transfer
# names: queue.put | queue.get | render_forever | Camera | __iter__ | np.empty
# fix:
# -    landscape = rng.random((3, 64, 64)).repeat(8, axis=1).repeat(8, axis=2)
# +    landscape = rng.integers(0, 256, (3, 64, 64), dtype=np.uint8).repeat(8, axis=1).repeat(8, axis=2)
#
# -        clips = np.empty((batch_size, FRAMES, 3, SIDE, SIDE))
# +        clips = np.empty((batch_size, FRAMES, 3, SIDE, SIDE), dtype=np.uint8)
#
# -            yield torch.from_numpy(clips).float(), torch.from_numpy(moves).float()
# +            yield torch.from_numpy(clips).float() / 255, torch.from_numpy(moves).float()

import argparse
import multiprocessing as mp
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

SIDE, FRAMES, STEPS = 96, 16, 40


def render_forever(queue, batch_size, seed):
    """Renders clips of a camera that flies over a landscape."""
    rng = np.random.default_rng(seed)
    landscape = rng.random((3, 64, 64)).repeat(8, axis=1).repeat(8, axis=2)
    while True:
        clips = np.empty((batch_size, FRAMES, 3, SIDE, SIDE))
        moves = rng.integers(-6, 7, (batch_size, 2))
        for clip, (right, down) in zip(clips, moves, strict=True):
            x, y = rng.integers(6 * FRAMES, 512 - SIDE - 6 * FRAMES, size=2)
            for number in range(FRAMES):
                left, top = x + number * right, y + number * down
                clip[number] = landscape[:, top : top + SIDE, left : left + SIDE]
        queue.put((clips, moves))


class Camera(IterableDataset):
    """Batches of clips and how the camera moved. The renderers start with the first epoch."""

    def __init__(self, batch_size, renderers=2):
        self.batch_size = batch_size
        self.renderers = renderers
        self.queue = None

    def start(self):
        self.queue = mp.Queue(maxsize=4)
        for seed in range(self.renderers):
            mp.Process(target=render_forever, args=(self.queue, self.batch_size, seed), daemon=True).start()

    def __iter__(self):
        if self.queue is None:
            self.start()
        for _ in range(STEPS):
            clips, moves = self.queue.get()
            yield torch.from_numpy(clips).float(), torch.from_numpy(moves).float()


class Odometry(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 16, 8, stride=8), nn.ELU(), nn.Conv2d(16, 48, 3, stride=2), nn.ELU(), nn.Flatten()
        )
        self.memory = nn.GRU(48 * 25, 128, batch_first=True)
        self.head = nn.Linear(128, 2)

    def forward(self, clips):
        codes = self.encoder(clips.flatten(0, 1)).unflatten(0, clips.shape[:2])
        return self.head(self.memory(codes)[0][:, -1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used, everything is rendered")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Camera(args.batch_size), batch_size=None)
    model = Odometry()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        t0 = time.time()
        errors = []
        for clips, moves in loader:
            error = (model(clips) - moves).pow(2).mean()
            optimizer.zero_grad()
            error.backward()
            optimizer.step()
            errors.append(error.item())
        rate = STEPS * args.batch_size / (time.time() - t0)
        print(f"epoch {epoch}  mse {np.mean(errors):.3f}  {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
