"""Recordings of unequal length in a compiled model. Bottleneck: it is compiled for each length.

Shows: steps take a second or more, each time the longest recording of a batch has a new length; on repeated
batches they take milliseconds.
Fix: torch.compile(dynamic=True), or lengths padded to a few values.
"""

# expected: recompile
# data: recordings.npz
# fix:
# -    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
# +    compiled = torch.compile(model, backend="aot_eager", dynamic=True)

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
    values, labels = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(values, batch_first=True).transpose(1, 2), torch.tensor(labels)


def make_model(channels, width=96):
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
    torch._dynamo.config.recompile_limit = 1000
    dataset = Recordings(args.data)
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True, collate_fn=pad
    )
    model = make_model(dataset.values.shape[1], width=32).to(device)
    compiled = torch.compile(model, backend="aot_eager", dynamic=False)
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for windows, labels in loader:
            loss = nn.functional.cross_entropy(compiled(windows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
