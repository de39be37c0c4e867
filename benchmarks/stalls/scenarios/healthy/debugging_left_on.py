"""A wide and deep recommender. The loader is healthy; anomaly detection was left on, which slows each step.

Shows: steps don't wait; backward checks each gradient for NaN, and forward keeps stack traces.
Fix: nothing in the loader; no torch.autograd.set_detect_anomaly.
"""

# expected: healthy step

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VISITS, FIELDS, VALUES = 25_600, 24, 500


class Visits(Dataset):
    """One row per visit: the categories of what was seen, and if something was bought."""

    def __init__(self):
        generator = torch.Generator().manual_seed(6)
        self.categories = torch.randint(VALUES, (VISITS, FIELDS), generator=generator)
        self.bought = torch.randint(2, (VISITS,), generator=generator).float()

    def __len__(self):
        return VISITS

    def __getitem__(self, index):
        return self.categories[index], self.bought[index]


class WideAndDeep(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.fields = nn.ModuleList(nn.Embedding(VALUES, width) for _ in range(FIELDS))
        self.wide = nn.ModuleList(nn.Embedding(VALUES, 1) for _ in range(FIELDS))
        self.deep = nn.Sequential(
            nn.Linear(FIELDS * width, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, categories):
        columns = categories.unbind(1)
        wide = sum(field(column) for field, column in zip(self.wide, columns, strict=True))
        deep = torch.cat([field(column) for field, column in zip(self.fields, columns, strict=True)], dim=1)
        return (wide + self.deep(deep)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.autograd.set_detect_anomaly(True)
    loader = DataLoader(Visits(), args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    model = WideAndDeep()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for categories, bought in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(categories), bought)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(bought)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
