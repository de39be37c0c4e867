"""A classifier, validated after each epoch. Healthy: both loaders work ahead, the step is the limit.

Shows: neither loop waits; validation takes a tenth of the time and computes throughout it.
Fix: nothing in the loaders.
"""

# expected: healthy
# data: recordings.npz

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset

WINDOW = 128


class Recordings(Dataset):
    def __init__(self, path):
        with np.load(path) as archive:
            self.values, self.starts, self.labels = archive["values"], archive["starts"], archive["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        start = self.starts[index]
        return torch.from_numpy(self.values[start : start + WINDOW].T.copy()), int(self.labels[index])


def make_model():
    return nn.Sequential(
        nn.Conv1d(16, 160, 7, padding=3), nn.ReLU(), nn.Conv1d(160, 160, 5, padding=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(160, 10),
    )  # fmt: skip


def run_epoch(model, loader, optimizer=None):
    total, correct = 0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for windows, labels in loader:
            scores = model(windows)
            loss = nn.functional.cross_entropy(scores, labels)
            if optimizer is not None:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += len(labels)
            correct += (scores.argmax(1) == labels).sum().item()
    return correct / total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Recordings(args.data)
    train, val = Subset(dataset, range(1500)), Subset(dataset, range(1500, 2000))
    options = {"num_workers": 1, "persistent_workers": True}
    loader = DataLoader(train, args.batch_size, shuffle=True, **options)
    val_loader = DataLoader(val, args.batch_size, **options)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        accuracy = run_epoch(model, loader, optimizer)
        rate = len(train) / (time.perf_counter() - start)
        accuracies = f"accuracy {accuracy:.3f} {run_epoch(model, val_loader):.3f}"
        print(f"epoch {epoch}: {accuracies}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
