"""Heartbeats in a dataset of Hugging Face. Bottleneck: each row comes as lists of Python numbers.

Shows: the worker computes all the time, in the formatting of datasets and in torch.tensor.
Fix: dataset.with_format("torch") or "numpy", or the same for the column of signals.
"""

# expected: dataset
# names: beats[ | self.beats | torch.tensor | __getitem__
# needs: datasets
# fix:
# -        self.beats = beats
# +        self.beats = beats.with_format("numpy")

import argparse
import time
from pathlib import Path

import datasets
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BEATS, LEADS, MOMENTS, RHYTHMS = 6000, 8, 500, 5


def record(folder):
    rng = np.random.default_rng(8)
    beats = {
        "signal": list(rng.standard_normal((BEATS, LEADS * MOMENTS), dtype=np.float32)),
        "rhythm": rng.integers(0, RHYTHMS, BEATS).tolist(),
    }
    datasets.Dataset.from_dict(beats).save_to_disk(folder)


class Heartbeats(Dataset):
    def __init__(self, beats):
        self.beats = beats

    def __len__(self):
        return len(self.beats)

    def __getitem__(self, index):
        beat = self.beats[index]
        signal = torch.tensor(beat["signal"], dtype=torch.float32)
        return signal.view(LEADS, MOMENTS), torch.tensor(beat["rhythm"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    folder = Path(args.data) / "heartbeats"
    if not folder.exists():
        record(folder)
    beats = datasets.load_from_disk(folder)
    loader = DataLoader(
        Heartbeats(beats), args.batch_size, shuffle=True, num_workers=1, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv1d(LEADS, 32, 9, stride=4), nn.ReLU(), nn.Conv1d(32, 64, 5, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, RHYTHMS),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for signals, rhythms in loader:
            loss = nn.functional.cross_entropy(model(signals), rhythms)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(rhythms)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
