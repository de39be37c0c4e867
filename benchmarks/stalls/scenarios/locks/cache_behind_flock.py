"""CT slices from a shared folder. Bottleneck: each read locks all of it for itself, so workers take turns.

Shows: of four workers, three wait in fcntl.flock at any time; no core is busy.
Fix: a shared lock (LOCK_SH) for readers, or none.
"""

# expected: lock
# names: flock | LOCK_EX | locked
# fix:
# -        fcntl.flock(file, fcntl.LOCK_EX)
# +        fcntl.flock(file, fcntl.LOCK_SH)

import argparse
import contextlib
import fcntl
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

PATIENTS, SLICES, SIDE = 40, 20, 64


def make_slices(folder):
    rng = np.random.default_rng(2)
    folder.mkdir()
    for patient in range(PATIENTS):
        np.save(folder / f"{patient:03}.npy", rng.integers(-1000, 2000, (SLICES, SIDE, SIDE), dtype=np.int16))


@contextlib.contextmanager
def locked(path):
    """So that nobody reads while the nightly import writes."""
    with open(path, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class Slices(Dataset):
    def __init__(self, folder):
        self.folder = folder
        self.patients = sorted(folder.glob("*.npy"))

    def __len__(self):
        return len(self.patients) * SLICES

    def __getitem__(self, index):
        patient, number = divmod(index, SLICES)
        with locked(self.folder / "import.lock"):
            time.sleep(0.005)  # stands for the latency of the file server
            pixels = np.load(self.patients[patient], mmap_mode="r")[number].copy()
        scaled = torch.from_numpy(pixels).float().clamp(-200, 300).div(500)
        return scaled[None], patient % 2


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    folder = Path(args.data) / "ct-slices"
    if not folder.exists():
        make_slices(folder)
    loader = DataLoader(Slices(folder), args.batch_size, shuffle=True, num_workers=4, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2), nn.BatchNorm2d(32), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 2),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for pixels, labels in loader:
            loss = nn.functional.cross_entropy(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
