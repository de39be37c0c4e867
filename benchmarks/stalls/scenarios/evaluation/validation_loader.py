"""Convolutions over sensor recordings, validated every 20 steps. Bottleneck: its loader has no workers.

Shows: training steps hardly wait; most of the time goes into the validation loop, which reads by itself.
Fix: workers for the validation loader, too.
"""

# expected: validation
# data: recordings.npz
# fix:
# -    val_loader = DataLoader(val, args.batch_size)
# +    val_loader = DataLoader(val, args.batch_size, num_workers=2, persistent_workers=True)

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

WINDOW = 128


class Recordings(Dataset):
    """Random windows of recordings, kept in one array behind each other."""

    def __init__(self, path):
        with np.load(path) as archive:
            self.values, self.starts = archive["values"], archive["starts"]
            self.labels = archive["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        start, stop = self.starts[index], self.starts[index + 1]
        start += np.random.randint(stop - start - WINDOW + 1)
        window = self.values[start : start + WINDOW]
        time.sleep(0.001)  # stands for a read from the archive
        return torch.from_numpy(window.T.copy()), int(self.labels[index])


def make_model(channels, width=96):
    body = nn.Sequential(
        nn.Conv1d(channels, width, 7, padding=3), nn.ReLU(), nn.Conv1d(width, width, 5, padding=2), nn.ReLU()
    )
    return nn.Sequential(body, nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(width, 10))


@torch.no_grad()
def validate(model, loader, device):
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)
    model.train()
    return right


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
    train, val = Subset(dataset, range(1000, len(dataset))), Subset(dataset, range(1000))
    loader = DataLoader(train, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    val_loader = DataLoader(val, args.batch_size)
    model = make_model(dataset.values.shape[1]).to(device)
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for step, (windows, labels) in enumerate(loader):
            loss = nn.functional.cross_entropy(model(windows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
            if step % 20 == 19:
                validate(model, val_loader, device)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
