"""Spoken commands with reverberation. Bottleneck: np.convolve multiplies all samples with all of the echo.

Shows: both workers compute in `reverberate` all the time; nothing is read.
Fix: scipy.signal.fftconvolve, which gives the same.
"""

# expected: transform dataset
# names: reverberate | np.convolve
# needs: scipy
# fix:
# -    wet = np.convolve(clip, room)[: len(clip)]
# +    wet = signal.fftconvolve(clip, room)[: len(clip)]

import argparse
import time

import numpy as np
import torch
from scipy import signal
from torch import nn
from torch.utils.data import DataLoader

RATE, CLIPS, WORDS, ROOMS, TAIL = 16_000, 1040, 10, 25, 5_000
HIGH_PASS = signal.butter(2, 80, "highpass", fs=RATE, output="sos")


def make_rooms(rng):
    """Impulse responses: echoes that die away within 0.3 seconds."""
    echoes = rng.standard_normal((ROOMS, TAIL)) * np.exp(-np.arange(TAIL) / 900)
    echoes[:, 0] = 10.0
    return (echoes / np.linalg.norm(echoes, axis=1, keepdims=True)).astype(np.float32)


def shift(clip, rng):
    return np.roll(clip, rng.integers(-800, 800))


def high_pass(clip):
    return signal.sosfilt(HIGH_PASS, clip).astype(np.float32)


def reverberate(clip, room):
    wet = np.convolve(clip, room)[: len(clip)]
    return wet * (np.abs(clip).max() / np.abs(wet).max())


def add_noise(clip, rng):
    return clip + 0.01 * rng.standard_normal(len(clip), dtype=np.float32)


class Commands(torch.utils.data.Dataset):
    def __init__(self):
        rng = np.random.default_rng(8)
        self.rooms = make_rooms(rng)
        self.clips = rng.standard_normal((CLIPS // 4, RATE), dtype=np.float32)

    def __len__(self):
        return CLIPS

    def __getitem__(self, index):
        rng = np.random.default_rng(torch.randint(2**31, ()).item())
        clip = high_pass(shift(self.clips[index % len(self.clips)], rng))
        clip = add_noise(reverberate(clip, self.rooms[rng.integers(ROOMS)]), rng)
        return torch.from_numpy(clip)[None], index % WORDS


def make_model(width=32):
    return nn.Sequential(
        nn.Conv1d(1, width, 80, stride=16), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(width, width, 5), nn.BatchNorm1d(width), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(width, 2 * width, 5), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * width, WORDS),
    )  # fmt: skip


def train_epoch(model, loader, optimizer):
    total, seen = 0.0, 0
    for clips, words in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(clips), words)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(words)
        seen += len(words)
    return total / seen, seen


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Commands(), args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        loss, seen = train_epoch(model, loader, optimizer)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss:.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
