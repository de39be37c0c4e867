"""Sales of items in stores, with Lightning. Bottleneck: each series is found by a mask over all rows.

Shows: both workers compute in pandas all the time, in comparisons.
Fix: group the rows by store and item once.
"""

# expected: dataset
# names: history | self.sales[
# needs: lightning pandas
# fix:
# -        self.sales = sales
# +        self.sales = sales
# +        groups = sales.groupby(["store", "item"], sort=False)["sold"]
# +        self.series = {pair: sold.to_numpy(np.float32) for pair, sold in groups}
#
# -        rows = self.sales[(self.sales["store"] == store) & (self.sales["item"] == item)]
# -        return rows["sold"].to_numpy(np.float32)
# +        return self.series[store, item]

import argparse
import time

import lightning
import numpy as np
import pandas
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

STORES, ITEMS, DAYS = 10, 60, 500
PAST, AHEAD, WINDOWS = 90, 14, 1600


def make_sales():
    """One row for each day, item and store, as the cash registers report them."""
    rng = np.random.default_rng(12)
    names = [f"store-{store}" for store in range(STORES)], [f"item-{item:03}" for item in range(ITEMS)]
    index = pandas.MultiIndex.from_product([range(DAYS), *names], names=["day", "store", "item"])
    sales = index.to_frame(index=False)
    sales["price"] = rng.uniform(1, 20, len(sales)).round(2)
    sales["sold"] = rng.poisson(4 + 2 * np.sin(sales["day"].to_numpy() * 2 * np.pi / 7))
    return sales


class Sales(Dataset):
    """Ninety days of an item in a store, and the two weeks after them."""

    def __init__(self, sales):
        self.sales = sales
        self.pairs = list(sales[["store", "item"]].drop_duplicates().itertuples(index=False, name=None))

    def __len__(self):
        return WINDOWS

    def history(self, store, item):
        rows = self.sales[(self.sales["store"] == store) & (self.sales["item"] == item)]
        return rows["sold"].to_numpy(np.float32)

    def __getitem__(self, index):
        sold = torch.from_numpy(self.history(*self.pairs[index % len(self.pairs)]))
        start = torch.randint(DAYS - PAST - AHEAD, ()).item()
        window = torch.log1p(sold[start : start + PAST + AHEAD])
        return window[:PAST], window[PAST:]


class Forecaster(lightning.LightningModule):
    def __init__(self, width=128):
        super().__init__()
        self.rnn = nn.GRU(1, width, batch_first=True)
        self.head = nn.Linear(width, AHEAD)

    def on_fit_start(self):
        self.start = time.perf_counter()

    def on_train_epoch_end(self):
        seconds, self.start = time.perf_counter() - self.start, time.perf_counter()
        print(f"epoch {self.current_epoch}: {WINDOWS / seconds:.1f} samples/s", flush=True)

    def training_step(self, batch, _):
        past, ahead = batch
        _, state = self.rnn(past[..., None])
        return nn.functional.l1_loss(self.head(state[-1]), ahead)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(0)
    loader = DataLoader(
        Sales(make_sales()), args.batch_size, shuffle=True, num_workers=2, persistent_workers=True
    )
    trainer = lightning.Trainer(
        max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Forecaster(), loader)


if __name__ == "__main__":
    main()
