"""Rare classes drawn more often. Bottleneck: a million indices are drawn, of which an epoch uses 6,400.

Shows: each epoch begins with a pause, in which the training thread draws and makes a list of numbers.
Fix: draw as many as an epoch uses.
"""

# expected: sampler
# names: WeightedRandomSampler
# advises: as many as | fewer
# fix:
# -    draws = 1_000_000
# +    draws = STEPS * args.batch_size

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

ROWS, COLUMNS, STEPS = 50_000, 32, 100


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: the table is made up")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.set_num_threads(1)
    labels = (torch.rand(ROWS) < 0.02).long()
    dataset = TensorDataset(torch.randn(ROWS, COLUMNS), labels)
    weights = torch.where(labels == 1, 50.0, 1.0)
    draws = 1_000_000
    sampler = WeightedRandomSampler(weights, draws, replacement=True)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler)
    model = nn.Sequential(nn.Linear(COLUMNS, 64), nn.ReLU(), nn.Linear(64, 2))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for step, (rows, targets) in enumerate(loader, 1):
            loss = nn.functional.cross_entropy(model(rows), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step == STEPS:
                break
        rate = STEPS * args.batch_size / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
