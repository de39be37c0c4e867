"""A classifier on rows of a database. Bottleneck: each query reads all of the table, for want of an index.

Shows: workers compute all the time in `execute`.
Fix: an index on the column that is searched.
"""

# expected: dataset read
# data: measurements.sqlite
# fix:
# -            self.connection = sqlite3.connect(self.path)
# +            self.connection = sqlite3.connect(":memory:")
# +            sqlite3.connect(self.path).backup(self.connection)
# +            self.connection.execute("CREATE INDEX codes ON measurements (code)")

import argparse
import sqlite3
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH = 64


class Measurements(Dataset):
    def __init__(self, path):
        self.path, self.connection = path, None
        with sqlite3.connect(path) as connection:
            self.count = connection.execute("SELECT count(*) FROM measurements").fetchone()[0]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.connection is None:
            self.connection = sqlite3.connect(self.path)
        query = "SELECT vector, label FROM measurements WHERE code = ?"
        vector, label = self.connection.execute(query, (f"m{index:08}",)).fetchone()
        return torch.from_numpy(np.frombuffer(vector, np.float32).copy()), label


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Measurements(args.data)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for vectors, labels in loader:
            loss = nn.functional.cross_entropy(model(vectors), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
