"""Credit scores from a CSV file. Bottleneck: read_csv skips all rows before the wanted one, for each sample.

Shows: the worker computes in pandas' parser. The training process collects garbage every tenth step, which
would be worth mentioning in a faster script.
Fix: read the file once.
"""

# expected: read dataset
# names: read_csv | skiprows | __getitem__
# advises: once | memory
# needs: pandas
# fix:
# -        self.path = path
# +        self.path = path
# +        self.frame = pd.read_csv(path)
#
# -        row = pd.read_csv(self.path, skiprows=index + 1, nrows=1, header=None).iloc[0]
# +        row = self.frame.iloc[index]

import argparse
import gc
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

APPLICANTS, COLUMNS = 5000, 24
SEEN = 1008


def write_applicants(path):
    rng = np.random.default_rng(49)
    values = rng.standard_normal((APPLICANTS, COLUMNS))
    score = values[:, :4].sum(1) + np.where(values[:, 4] > 0, values[:, 5], values[:, 6])
    frame = pd.DataFrame(values, columns=[f"f{number}" for number in range(COLUMNS)]).round(5)
    frame["repaid"] = (score + rng.standard_normal(APPLICANTS) > 0).astype(int)
    frame.to_csv(path, index=False)


class Applicants(Dataset):
    """A random part of the applicants; the file is said to be too large for memory."""

    def __init__(self, path):
        self.path = path
        with open(path) as file:
            self.rows = sum(1 for _ in file) - 1

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        row = pd.read_csv(self.path, skiprows=index + 1, nrows=1, header=None).iloc[0]
        features = torch.tensor(row.iloc[:COLUMNS].to_numpy(dtype=np.float32))
        label = torch.tensor(row.iloc[COLUMNS], dtype=torch.float32)
        return features, label


class FTTransformer(nn.Module):
    """Each column is a token."""

    def __init__(self, dim=48, depth=2, heads=4):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(COLUMNS, dim) * 0.1)
        self.bias = nn.Parameter(torch.randn(COLUMNS, dim) * 0.1)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(dim, 1)

    def forward(self, features):
        tokens = features[..., None] * self.weight + self.bias
        tokens = torch.cat([self.cls.expand(len(features), -1, -1), tokens], dim=1)
        return self.head(self.encoder(tokens)[:, 0]).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()

    torch.set_num_threads(1)
    path = Path(args.data) / "applicants.csv"
    if not path.exists():
        write_applicants(path)
    dataset = Applicants(path)
    sampler = torch.utils.data.RandomSampler(dataset, num_samples=SEEN)
    loader = DataLoader(dataset, args.batch_size, sampler=sampler, num_workers=1, persistent_workers=True)
    model = FTTransformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    loss_fn = nn.BCEWithLogitsLoss()
    step = 0
    for epoch in range(args.epochs):
        start, total = time.perf_counter(), 0.0
        for features, label in loader:
            loss = loss_fn(model(features), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(label)
            step += 1
            if step % 10 == 0:
                gc.collect()
        rate = SEEN / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {total / SEEN:.4f} - {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
