"""Vibrations of bearings, streamed. Bottleneck: the buffer for shuffling is emptied, then filled all at once.

Shows: most steps don't wait at all, every thirtieth waits for a while, in which the worker parses
1,000 lines; then the worker waits. Taken together, it is no slower than the training.
Fix: parse one line for each sample that leaves the buffer.
"""

# expected: dataset straggler
# names: shuffled | buffer | parse | __iter__
# fix:
# -            if len(buffer) == self.buffer_size:
# -                rng.shuffle(buffer)
# -                yield from buffer
# -                buffer = []
# +            if len(buffer) == self.buffer_size:
# +                place = rng.randrange(len(buffer))
# +                buffer[place], buffer[-1] = buffer[-1], buffer[place]
# +                yield buffer.pop()

import argparse
import random
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

LINES, MOMENTS, FAULTS = 7200, 1024, 5


def simulate(path):
    """Each line: the label, then the amplitudes in millivolts."""
    rng = np.random.default_rng(44)
    phase = np.arange(MOMENTS)
    partial = path.with_suffix(".partial")
    with partial.open("w") as file:
        for _ in range(LINES):
            label = int(rng.integers(FAULTS))
            signal = 300 * np.sin(phase * (0.1 + 0.07 * label) + rng.uniform(0, 6))
            values = (signal + 150 * rng.standard_normal(MOMENTS)).astype(int).tolist()
            file.write(f"{label}," + ",".join(map(str, values)) + "\n")
    partial.rename(path)


class Vibrations(IterableDataset):
    def __init__(self, path, buffer_size=1000):
        self.path = path
        self.buffer_size = buffer_size

    def parse(self, line):
        label, *values = line.split(",")
        signal = np.array([float(value) for value in values], dtype=np.float32)
        return (signal - signal.mean()) / signal.std(), int(label)

    def shuffled(self, lines):
        rng = random.Random(torch.initial_seed())
        buffer = []
        for line in lines:
            buffer.append(self.parse(line))
            if len(buffer) == self.buffer_size:
                rng.shuffle(buffer)
                yield from buffer
                buffer = []
        rng.shuffle(buffer)
        yield from buffer

    def __iter__(self):
        with open(self.path) as lines:
            yield from self.shuffled(lines)


class Diagnosis(nn.Module):
    def __init__(self, channels=24):
        super().__init__()
        self.conv1 = nn.Conv1d(1, channels, 16, stride=8)
        self.conv2 = nn.Conv1d(channels, 2 * channels, 8, stride=4)
        self.rnn = nn.GRU(2 * channels, 48, batch_first=True)
        self.out = nn.Linear(48, FAULTS)

    def forward(self, signals):
        x = torch.relu(self.conv1(signals[:, None]))
        x = torch.relu(self.conv2(x))
        _, state = self.rnn(x.transpose(1, 2))
        return self.out(state[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    path = args.data / "bearings.csv"
    if not path.exists():
        simulate(path)
    loader = DataLoader(Vibrations(path), args.batch_size, num_workers=1, persistent_workers=True)
    model = Diagnosis()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        begin, n, hits = time.monotonic(), 0, 0
        for signals, labels in loader:
            logits = model(signals)
            loss = nn.functional.cross_entropy(logits, labels)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            hits += int((logits.argmax(-1) == labels).sum())
            n += len(labels)
        print(f"{epoch}: {hits / n:.1%}, {n / (time.monotonic() - begin):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
