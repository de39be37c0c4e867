"""Machine sounds, cached for all workers. Bottleneck: the cache is a dict that one manager process serves.

Shows: workers hardly compute; they wait for the manager's process, which pickles each array and sends it.
Fix: one tensor in shared memory in place of the dict.
"""

# expected: lock read dataset
# names: self.cache | Manager | __getitem__ | bands
# fix:
# -        self.manager = multiprocessing.Manager()
# -        self.cache = self.manager.dict()
# +        self.cache = torch.full((RECORDINGS, BANDS, FRAMES), float("nan")).share_memory_()
#
# -        if index not in self.cache:
# -            self.cache[index] = compute_bands(self.sound, index)
# -        return self.cache[index]
# +        if self.cache[index, 0, 0].isnan():
# +            self.cache[index] = torch.from_numpy(compute_bands(self.sound, index))
# +        return self.cache[index].numpy()

import argparse
import multiprocessing
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

RECORDINGS, BANDS, FRAMES, CROP, MACHINES = 150, 128, 1200, 64, 6


def compute_bands(sound, index):
    """Loudness of 128 bands of frequency over 1,200 moments."""
    start = index * 977
    frames = np.lib.stride_tricks.sliding_window_view(sound[start:], 512)[: FRAMES * 128 : 128]
    power = np.abs(np.fft.rfft(frames * np.hanning(512)))[:, :256] ** 2
    return np.log(power.reshape(FRAMES, BANDS, 2).mean(2).T + 1e-6).astype(np.float32)


class Machines(Dataset):
    def __init__(self, crops):
        self.sound = np.random.default_rng(6).standard_normal(500_000, dtype=np.float32)
        self.crops = crops
        self.manager = multiprocessing.Manager()
        self.cache = self.manager.dict()

    def __len__(self):
        return self.crops

    def bands(self, index):
        if index not in self.cache:
            self.cache[index] = compute_bands(self.sound, index)
        return self.cache[index]

    def __getitem__(self, crop):
        index = crop % RECORDINGS
        start = np.random.randint(FRAMES - CROP)
        return torch.from_numpy(self.bands(index)[:, start : start + CROP].copy()), index % MACHINES


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Machines(crops=14_400)
    batches = BatchSampler(RandomSampler(dataset), args.batch_size, drop_last=True)
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv1d(BANDS, 48, 3), nn.ReLU(), nn.Conv1d(48, 48, 3, stride=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(48, MACHINES),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for bands, machines in loader:
            loss = nn.functional.cross_entropy(model(bands), machines)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(machines)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
