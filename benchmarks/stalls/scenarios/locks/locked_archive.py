"""Convolutions over sensor recordings in a zip file. Bottleneck: one handle behind a lock for all.

Shows: workers are hardly ever busy: one reads, all others wait for the lock; more of them bring nothing.
Fix: a handle of its own for each worker, and no lock.
"""

# expected: lock
# data: recordings.npz
# fix:
# -        with self.lock:
# -            time.sleep(0.002)  # stands for the seek on a slow disk
# -            return self.archive.read(str(index))
# +        if getattr(self, "worker", None) != multiprocessing.current_process().pid:
# +            self.worker, self.archive = multiprocessing.current_process().pid, zipfile.ZipFile(self.path)
# +        time.sleep(0.002)
# +        return self.archive.read(str(index))

import argparse
import io
import multiprocessing
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WINDOW = 128


class Recordings(Dataset):
    """Recordings in a zip file that all workers read by one handle, which they inherit."""

    def __init__(self, path):
        with np.load(path) as archive:
            values, starts, self.labels = archive["values"], archive["starts"], archive["labels"]
        self.path = Path(path).with_suffix(".zip")
        if not self.path.exists():
            with zipfile.ZipFile(self.path, "w", zipfile.ZIP_STORED) as archive:
                for number in range(len(self.labels)):
                    file = io.BytesIO()
                    np.save(file, values[starts[number] : starts[number + 1]])
                    archive.writestr(str(number), file.getvalue())
        self.channels = values.shape[1]
        self.archive = zipfile.ZipFile(self.path.open("rb", buffering=0))
        self.lock = multiprocessing.Lock()

    def __len__(self):
        return len(self.labels)

    def read(self, index):
        with self.lock:
            time.sleep(0.002)  # stands for the seek on a slow disk
            return self.archive.read(str(index))

    def __getitem__(self, index):
        values = np.load(io.BytesIO(self.read(index)))
        start = np.random.randint(len(values) - WINDOW + 1)
        return torch.from_numpy(values[start : start + WINDOW].T.copy()), int(self.labels[index])


def make_model(channels, width=16):
    body = nn.Sequential(
        nn.Conv1d(channels, width, 7, padding=3), nn.ReLU(), nn.Conv1d(width, width, 5, padding=2), nn.ReLU()
    )
    return nn.Sequential(body, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(width, 10))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(args.device)
    dataset = Recordings(args.data)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=4, persistent_workers=True)
    model = make_model(dataset.channels).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for windows, labels in loader:
            loss = nn.functional.cross_entropy(model(windows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
