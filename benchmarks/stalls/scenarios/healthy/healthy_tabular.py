"""A wide multilayer perceptron on a table in memory. Healthy: the step is the limit.

Shows: steps hardly wait, although there are no workers.
Fix: nothing in the loader.
"""

# expected: healthy

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: the table is made up")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.manual_seed(0)
    table, labels = torch.randn(20_000, 64), torch.randint(0, 5, (20_000,))
    loader = DataLoader(TensorDataset(table, labels), batch_size=args.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(64, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(), nn.Linear(1536, 1536), nn.ReLU(),
        nn.Linear(1536, 5),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        rate = len(table) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
