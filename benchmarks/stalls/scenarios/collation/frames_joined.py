"""Clicks on offers of a shop. Bottleneck: collate makes a DataFrame of each row, and joins them by pd.concat.

Shows: both workers are busy all the time in pandas, below the collate function; samples are there already.
Fix: pd.DataFrame(rows).
"""

# expected: collate
# names: pd.concat | pd.DataFrame | collate | to_frame
# needs: pandas
# fix:
# -    return pd.concat([pd.DataFrame([row]) for row in rows], ignore_index=True)
# +    return pd.DataFrame(rows)

import argparse
import time

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, random_split

VISITS = 9600
DEVICES = {"desktop": 0, "phone": 1, "tablet": 2}
CATEGORIES = ("brand", "department", "region", "campaign", "weekday")
NUMBERS = ("price", "discount", "rating", "seconds_on_page", "visits_before")
SIZES = {"brand": 400, "department": 30, "region": 90, "campaign": 60, "weekday": 7}


def make_visits():
    rng = np.random.default_rng(65)
    table = pd.DataFrame({name: rng.integers(0, SIZES[name], VISITS) for name in CATEGORIES})
    for name in NUMBERS:
        values = rng.gamma(2.0, 3.0, VISITS)
        values[rng.random(VISITS) < 0.1] = np.nan
        table[name] = values
    table["device"] = rng.choice(list(DEVICES), VISITS)
    table["clicked"] = rng.random(VISITS) < 0.2
    return table


class Visits(Dataset):
    def __init__(self, table):
        self.rows = table.to_dict("records")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def to_frame(rows):
    return pd.concat([pd.DataFrame([row]) for row in rows], ignore_index=True)


class Featurizer:
    """Turns rows into tensors; numbers that are missing become the mean of the training set."""

    def __init__(self, table):
        self.means = table[list(NUMBERS)].mean()
        self.spreads = table[list(NUMBERS)].std()

    def __call__(self, rows):
        frame = to_frame(rows)
        numbers = (frame[list(NUMBERS)].fillna(self.means) - self.means) / self.spreads
        categories = frame[list(CATEGORIES)].assign(device=frame["device"].map(DEVICES))
        return (
            torch.tensor(numbers.to_numpy(np.float32)),
            torch.tensor(categories.to_numpy(np.int64)),
            torch.tensor(frame["clicked"].to_numpy(np.float32)),
        )


class ClickModel(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        sizes = [*SIZES.values(), len(DEVICES)]
        self.embeddings = nn.ModuleList(nn.Embedding(size, width) for size in sizes)
        inputs = len(NUMBERS) + width * len(sizes)
        self.deep = nn.Sequential(
            nn.Linear(inputs, 768),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(768, 768),
            nn.ReLU(),
            nn.Linear(768, 1),
        )

    def forward(self, numbers, categories):
        columns = [table(column) for table, column in zip(self.embeddings, categories.unbind(1), strict=True)]
        return self.deep(torch.cat([numbers, *columns], dim=1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: visits are made up")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(65)
    table = make_visits()
    train, held_out = random_split(Visits(table), [0.9, 0.1])
    loader = DataLoader(
        train,
        args.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=2,
        collate_fn=Featurizer(table),
        persistent_workers=True,
    )
    print(f"{len(train)} visits to train on, {len(held_out)} are left for later")
    model = ClickModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    criterion = nn.BCEWithLogitsLoss()
    for epoch in range(args.epochs):
        started, total = time.time(), 0.0
        for numbers, categories, clicked in loader:
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(numbers, categories), clicked)
            loss.backward()
            optimizer.step()
            total += loss.item()
        rate = len(loader) * args.batch_size / (time.time() - started)
        print(f"epoch {epoch + 1}: log loss {total / len(loader):.4f} ({rate:.1f} samples/s)", flush=True)


if __name__ == "__main__":
    main()
