"""Next frames of drifting clouds, with a thread that prefetches. Healthy: the step is the limit.

Shows: the queue of the thread is full most of the time; it cuts and flips clips in NumPy, which is quick.
"""

# expected: healthy

import argparse
import queue
import threading
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, CUT, FRAMES = 48, 32, 6


def make_clouds(count, rng):
    """(count, FRAMES + 1, SIDE, SIDE) uint8; each sky drifts in its own direction."""
    rough = rng.integers(0, 256, (count, 16, 16), dtype=np.uint8)
    skies = rough.repeat(6, axis=1).repeat(6, axis=2)
    drift = rng.integers(-3, 4, (count, 2))
    movies = np.empty((count, FRAMES + 1, SIDE, SIDE), dtype=np.uint8)
    for movie, sky, (down, right) in zip(movies, skies, drift, strict=True):
        for number in range(FRAMES + 1):
            movie[number] = np.roll(sky, (number * down, number * right), (0, 1))[:SIDE, :SIDE]
    return movies


class Clouds(Dataset):
    def __init__(self, count=560):
        self.rng = np.random.default_rng(53)
        self.movies = make_clouds(count, self.rng)

    def __len__(self):
        return len(self.movies)

    def __getitem__(self, index):
        top, left = self.rng.integers(SIDE - CUT, size=2)
        movie = self.movies[index, :, top : top + CUT, left : left + CUT]
        if self.rng.random() < 0.5:
            movie = movie[:, :, ::-1]
        return (movie / np.float32(255))[:, None]


class Prefetcher:
    """Iterates over a loader in a thread, a few batches ahead."""

    def __init__(self, loader, ahead=4):
        self.loader = loader
        self.ahead = ahead

    def _fill(self, batches):
        for batch in self.loader:
            batches.put(batch)
        batches.put(None)

    def __iter__(self):
        batches = queue.Queue(self.ahead)
        thread = threading.Thread(target=self._fill, args=(batches,), daemon=True)
        thread.start()
        while (batch := batches.get()) is not None:
            yield batch
        thread.join()


class ConvGRU(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.gates = nn.Conv2d(1 + width, 2 * width, 3, padding=1)
        self.candidate = nn.Conv2d(1 + width, width, 3, padding=1)
        self.to_frame = nn.Conv2d(width, 1, 1)

    def forward(self, frames):
        state = frames.new_zeros(len(frames), self.width, CUT, CUT)
        for frame in frames.unbind(1):
            update, reset = self.gates(torch.cat([frame, state], 1)).sigmoid().chunk(2, 1)
            candidate = self.candidate(torch.cat([frame, reset * state], 1)).tanh()
            state = state.lerp(candidate, update)
        return self.to_frame(state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    batches = Prefetcher(DataLoader(Clouds(), args.batch_size, shuffle=True))
    model = ConvGRU()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for movies in batches:
            loss = nn.functional.mse_loss(model(movies[:, :-1]), movies[:, -1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(movies)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
