"""Tiny samples out of a list of millions of tuples. Bottleneck: memory, which workers copy page by page.

Shows: training is fast enough, but each worker grows by all of the list within an epoch, as reading an object
changes its reference count, and the page that it lies on is copied.
Fix: the records in arrays.
"""

# expected: memory
# data: recordings.npz
# fix:
# -        self.records = [(number, float(number % 97), float(number % 89)) for number in range(RECORDS)]
# +        self.records = torch.arange(RECORDS)[:, None] % torch.tensor([RECORDS, 97, 89])
#
# -        return torch.tensor([row[1:] for row in rows]).flatten(), rows[0][0] % 10
# +        return torch.stack(rows)[:, 1:].float().flatten(), int(rows[0][0]) % 10

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RECORDS, BLOCK = 3_000_000, 64


class Records(Dataset):
    """Blocks of records, each a tuple of its own."""

    def __init__(self):
        self.records = [(number, float(number % 97), float(number % 89)) for number in range(RECORDS)]

    def __len__(self):
        return RECORDS // BLOCK

    def __getitem__(self, index):
        rows = [self.records[(BLOCK * index + 7919 * k) % RECORDS] for k in range(BLOCK)]
        return torch.tensor([row[1:] for row in rows]).flatten(), rows[0][0] % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(args.device)
    dataset = Records()
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    hidden = nn.Sequential(nn.Linear(2 * BLOCK, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU())
    model = nn.Sequential(hidden, nn.Linear(2048, 10))
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters())

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for rows, labels in loader:
            loss = nn.functional.cross_entropy(model(rows.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
