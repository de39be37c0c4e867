"""Yields of fields from weather. Bottleneck: after each step, a table of all steps so far is written as CSV.

Shows: steps get longer from epoch to epoch, as the training process formats more and more rows.
Fix: write the table once per epoch, or append a row.
"""

# expected: logging
# names: write | writerows | csv
# fix:
# -            journal.add(epoch=epoch, loss=loss.item(), error=error.item(), **shares(model))
# -        rate = seen / (time.perf_counter() - start)
# +            journal.rows.append(dict(epoch=epoch, loss=loss.item(), error=error.item(), **shares(model)))
# +        journal.write()
# +        rate = seen / (time.perf_counter() - start)

import argparse
import csv
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FIELDS, DAYS, READINGS = 6400, 60, 5


class Fields(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(41)
        self.weather = torch.randn(FIELDS, DAYS, READINGS, generator=generator)
        self.yields = self.weather[:, 20:40, 1].mean(1) * 3 + 8

    def __len__(self):
        return FIELDS

    def __getitem__(self, index):
        return self.weather[index], self.yields[index]


class Journal:
    def __init__(self, path):
        self.path, self.rows = path, []

    def add(self, **row):
        self.rows.append(row)
        self.write()

    def write(self):
        with open(self.path, "w", newline="") as target:
            table = csv.DictWriter(target, list(self.rows[0]))
            table.writeheader()
            table.writerows(self.rows)


def shares(model):
    """The share of large weights in each layer."""
    return {
        name: (weight.detach().abs() > 0.1).float().mean().item() for name, weight in model.named_parameters()
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    journal = Journal(Path(args.data) / "yields.csv")
    loader = DataLoader(Fields(), args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(DAYS * READINGS, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(),
        nn.Linear(256, 64), nn.GELU(), nn.Linear(64, 1), nn.Flatten(0),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for weather, yields in loader:
            guess = model(weather)
            loss = nn.functional.mse_loss(guess, yields)
            error = (guess - yields).abs().max()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(yields)
            journal.add(epoch=epoch, loss=loss.item(), error=error.item(), **shares(model))
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
