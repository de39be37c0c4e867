"""Readings in a tar. Bottleneck: a helper opens it for every sample and looks for the member from the start.

Shows: the training thread parses headers in tarfile.py.
Fix: the tar is opened once, when the first sample is needed.
"""

# expected: read
# names: tarfile.open | extractfile
# advises: once | open the archive
# fix:
# -    with tarfile.open(location) as tar:
# +    if not OPENED:
# +        OPENED["tar"] = tarfile.open(location)
# +        OPENED["tar"].getmembers()
# +    if tar := OPENED["tar"]:

import argparse
import io
import tarfile
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

NAMES = [f"day-{day}/sensor-{sensor}.f4" for day in range(30) for sensor in range(20)]
OPENED = {}


def member(location, name):
    with tarfile.open(location) as tar:
        return np.frombuffer(tar.extractfile(name).read(), np.float32)


class SensorDays(Dataset):
    def __init__(self, location):
        self.location = location

    def __len__(self):
        return len(NAMES)

    def __getitem__(self, number):
        values = torch.tensor(member(self.location, NAMES[number]))
        return values, values.mean()


def write(location):
    rng = np.random.default_rng(0)
    with tarfile.open(location, "w") as tar:
        for name in NAMES:
            info, data = tarfile.TarInfo(name), rng.standard_normal(288, np.float32).tobytes()
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=20)
    args = parser.parse_args()

    location = Path(args.data) / "sensors.tar"
    if not location.exists():
        write(location)
    torch.set_num_threads(1)
    days = DataLoader(SensorDays(location), args.batch_size, shuffle=True)
    regression = torch.nn.Linear(288, 1)
    optimizer = torch.optim.SGD(regression.parameters(), 0.01)
    for _ in range(args.epochs):
        start = time.perf_counter()
        for values, means in days:
            loss = (regression(values).squeeze(1) - means).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(days.dataset) / (time.perf_counter() - start)
        print(f"loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
