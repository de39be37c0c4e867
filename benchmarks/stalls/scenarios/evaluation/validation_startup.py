"""Convolutions over recordings, often validated. Bottleneck: each validation starts its workers again.

Shows: the training loader is far ahead; the loop over the validation loader waits for its first batch.
Fix: persistent_workers=True for the validation loader.
"""

# expected: validation
# data: recordings.npz
# fix:
# -    val_loader = DataLoader(val, args.batch_size, num_workers=2)
# +    val_loader = DataLoader(val, args.batch_size, num_workers=2, persistent_workers=True)

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

WINDOW = 100


class Recordings(Dataset):
    def __init__(self, path):
        with np.load(path) as archive:
            self.values, self.starts, self.labels = archive["values"], archive["starts"], archive["labels"]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        start = self.starts[index]
        return torch.from_numpy(self.values[start : start + WINDOW].T.copy()), int(self.labels[index])


class Trainer:
    def __init__(self, model, train_loader, val_loader):
        self.model, self.train_loader, self.val_loader = model, train_loader, val_loader
        self.optimizer = torch.optim.Adam(model.parameters())

    def fit(self, epochs):
        for epoch in range(epochs):
            start, seen = time.perf_counter(), 0
            for number, (windows, labels) in enumerate(self.train_loader):
                loss = nn.functional.cross_entropy(self.model(windows), labels)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                seen += len(labels)
                if number % 10 == 9:
                    self.validate()
            rate = seen / (time.perf_counter() - start)
            print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses = [nn.functional.cross_entropy(self.model(x), y).item() for x, y in self.val_loader]
        self.model.train()
        return sum(losses) / len(losses)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    train, val = random_split(Recordings(args.data), [0.95, 0.05])
    train_loader = DataLoader(train, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    val_loader = DataLoader(val, args.batch_size, num_workers=2)
    model = nn.Sequential(
        nn.Conv1d(16, 64, 7), nn.ReLU(), nn.Conv1d(64, 64, 5), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    Trainer(model, train_loader, val_loader).fit(args.epochs)


if __name__ == "__main__":
    main()
