"""Ten million rows in random order. Healthy, but each epoch begins with a permutation of all rows.

Shows: the first batch takes seconds, since the sampler makes a list of ten million numbers; steps don't wait.
Fix: nothing in the loader; an epoch takes an hour.
"""

# expected: healthy

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROWS = 10_000_000


class Rows(Dataset):
    def __init__(self):
        self.numbers = torch.randint(0, 1000, (ROWS,), dtype=torch.int16)

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return torch.sin(self.numbers[index] * torch.arange(64)), int(self.numbers[index]) % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: rows are made up")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Rows(), args.batch_size, shuffle=True, num_workers=1)
    model = nn.Sequential(
        nn.Linear(64, 1500), nn.ReLU(), nn.Linear(1500, 1500), nn.ReLU(), nn.Linear(1500, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for rows, labels in loader:
            loss = nn.functional.cross_entropy(model(rows), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = ROWS / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
