"""Fraud in a table of payments. Bottleneck: each checkpoint holds the payments, 77 MB, beside a small model.

Shows: the loader is quick; much of the time goes into torch.save, in the training process.
Fix: save what the training changes only.
"""

# expected: checkpoint
# names: torch.save | def save | self.save
# fix:
# -        torch.save(vars(self), self.path)
# +        small = {"model": self.model, "optimizer": self.optimizer, "steps": self.steps}
# +        torch.save(small, self.path)

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

PAYMENTS, COLUMNS, SAVE_EVERY = 160_000, 120, 15


class Payments(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(25)
        self.columns = torch.randn(PAYMENTS, COLUMNS, generator=generator)
        self.fraud = (self.columns[:, :3].sum(1) > 3).float()

    def __len__(self):
        return PAYMENTS

    def __getitem__(self, rows):
        return self.columns[rows], self.fraud[rows]


class Run:
    """A training that can be resumed."""

    def __init__(self, dataset, path, batch_size):
        self.dataset, self.path, self.batch_size = dataset, path, batch_size
        self.model = nn.Sequential(
            nn.Linear(COLUMNS, 192), nn.SiLU(), nn.Linear(192, 192), nn.SiLU(), nn.Linear(192, 1)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.steps = 0

    def batches(self):
        sampler = BatchSampler(RandomSampler(self.dataset), self.batch_size, drop_last=False)
        return DataLoader(self.dataset, sampler=sampler, batch_size=None)

    def save(self):
        torch.save(vars(self), self.path)

    def step(self, columns, fraud):
        weight = 1 + 9 * fraud
        loss = nn.functional.binary_cross_entropy_with_logits(self.model(columns).squeeze(1), fraud, weight)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        if self.steps % SAVE_EVERY == 0:
            self.save()
        return loss.item()

    def epoch(self):
        start = time.perf_counter()
        for columns, fraud in self.batches():
            loss = self.step(columns, fraud)
        return loss, PAYMENTS / (time.perf_counter() - start)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=512)
    args = parser.parse_args()

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Payments(), Path(folder) / "last.pt", args.batch_size)
        for epoch in range(args.epochs):
            loss, rate = run.epoch()
            print(f"epoch {epoch}: loss {loss:.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
