"""Rows of a Parquet file. Bottleneck: the file with its 2,000 row groups is opened for each row.

Shows: three workers compute in pyarrow, which parses the footer.
Fix: one open file per worker.
"""

# expected: read
# names: ParquetFile
# advises: once
# needs: pyarrow
# fix:
# -        table = pyarrow.parquet.ParquetFile(self.file)
# +        table = getattr(self, "table", None) or pyarrow.parquet.ParquetFile(self.file)
# +        self.table = table

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

GROUPS, COLUMNS = 2000, 24


class Trips(Dataset):
    def __init__(self, file):
        self.file = str(file)

    def __len__(self):
        return GROUPS

    def __getitem__(self, group):
        table = pyarrow.parquet.ParquetFile(self.file)
        rows = table.read_row_group(group)
        values = np.stack([column.to_numpy() for column in rows.columns]).ravel()
        return torch.tensor(values, dtype=torch.float32), float(group % 2)


def create(file):
    rng = np.random.default_rng(0)
    columns = {f"c{number}": rng.standard_normal(GROUPS * 4) for number in range(COLUMNS)}
    pyarrow.parquet.write_table(pyarrow.table(columns), file, row_group_size=4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=25)
    args = parser.parse_args()

    file = Path(args.data) / "trips.parquet"
    if not file.exists():
        create(file)
    torch.set_num_threads(1)
    loader = DataLoader(Trips(file), args.batch_size, shuffle=True, num_workers=3)
    model = nn.Sequential(nn.Linear(4 * COLUMNS, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for trips, tipped in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(trips).squeeze(1), tipped.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(loader.dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
