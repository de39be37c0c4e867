"""Convolutions over sensor recordings of unequal length. Bottleneck: collate pads lists of Python numbers.

Shows: both workers are busy all the time, nearly all of it in collate_fn; samples cost next to nothing.
Fix: torch.nn.utils.rnn.pad_sequence instead.
"""

# expected: collate
# data: recordings.npz
# fix:
# -        row = values.tolist()
# -        row += [[0.0] * values.shape[1]] * (longest - len(row))
# -        rows.append(row)
# -    return torch.tensor(rows), torch.tensor([label for _, label in samples])
# +        rows.append(nn.functional.pad(values, (0, 0, 0, longest - len(values))))
# +    return torch.stack(rows), torch.tensor([label for _, label in samples])

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Recordings(Dataset):
    """Recordings of several channels each, kept in one array behind each other."""

    def __init__(self, path):
        with np.load(path) as archive:
            self.values, self.starts = archive["values"], archive["starts"]
            self.labels = archive["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        values = self.values[self.starts[index] : self.starts[index + 1]]
        return torch.from_numpy(values), int(self.labels[index])


def pad(samples):
    longest = max(len(values) for values, _ in samples)
    rows = []
    for values, _ in samples:
        row = values.tolist()
        row += [[0.0] * values.shape[1]] * (longest - len(row))
        rows.append(row)
    return torch.tensor(rows), torch.tensor([label for _, label in samples])


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
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=2, collate_fn=pad, persistent_workers=True
    )
    channels = dataset.values.shape[1]
    encoder = nn.Sequential(nn.Conv1d(channels, 32, 5, 2), nn.ReLU(), nn.Conv1d(32, 64, 5, 4), nn.ReLU())
    model = nn.Sequential(encoder, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for values, labels in loader:
            values, labels = values.transpose(1, 2).to(device), labels.to(device)
            loss = nn.functional.cross_entropy(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
