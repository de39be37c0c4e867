"""Delays of flights, with Lightning. Bottleneck: each epoch makes the loader again, and reads the table.

Shows: batches come in time, but each epoch begins with a second or more in pandas.
Fix: reload_dataloaders_every_n_epochs=0, or read the table in setup().
"""

# expected: startup read dataset
# names: reload_dataloaders_every_n_epochs | train_dataloader | load_table | read_csv | fit(
# needs: lightning pandas
# fix:
# -        reload_dataloaders_every_n_epochs=1,
# +        reload_dataloaders_every_n_epochs=0,

import argparse
import time
from pathlib import Path

import lightning
import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

FLIGHTS, AIRPORTS = 300_000, 120
PER_EPOCH = 24_000
NUMBERS = ["departure", "distance", "wind", "visibility", "weekday", "month", "busy"]
NUMBERS += ["origin_delay", "destination_delay"]


def make_table(path):
    rng = np.random.default_rng(46)
    codes = np.array([f"{chr(65 + n // 26)}{chr(65 + n % 26)}X" for n in range(AIRPORTS)])
    day = pd.to_datetime("2024-01-01") + pd.to_timedelta(rng.integers(0, 365, FLIGHTS), unit="D")
    table = pd.DataFrame(
        {
            "date": day.strftime("%Y-%m-%d"),
            "origin": rng.choice(codes, FLIGHTS),
            "destination": rng.choice(codes, FLIGHTS),
            "departure": [f"{minute // 60:02}:{minute % 60:02}" for minute in rng.integers(0, 1440, FLIGHTS)],
            "distance": rng.gamma(3, 400, FLIGHTS).round(1),
            "wind": rng.normal(10, 6, FLIGHTS).round(2),
            "visibility": rng.gamma(9, 1, FLIGHTS).round(2),
        }
    )
    table["delay"] = (0.2 * table["wind"] - table["visibility"] + rng.gamma(2, 8, FLIGHTS)).round(1)
    table.to_csv(path, index=False)


def minutes_of(departure):
    hours, minutes = departure.split(":")
    return 60 * int(hours) + int(minutes)


class FlightData(lightning.LightningDataModule):
    def __init__(self, path, batch_size):
        super().__init__()
        self.path = path
        self.batch_size = batch_size

    def prepare_data(self):
        if not self.path.exists():
            make_table(self.path)

    def load_table(self):
        table = pd.read_csv(self.path, parse_dates=["date"])
        table["weekday"] = table["date"].dt.weekday
        table["month"] = table["date"].dt.month
        table["departure"] = table["departure"].map(minutes_of)
        for column in ("origin", "destination"):
            table[column] = table[column].astype("category").cat.codes
            delays = table.groupby([column, "month"])["delay"]
            table[f"{column}_delay"] = delays.transform(lambda values: values.quantile(0.9))
        table["busy"] = table.groupby(["date", "origin"])["delay"].transform("count")
        return table

    def train_dataloader(self):
        table = self.load_table()
        numbers = table[NUMBERS].to_numpy(np.float32)
        numbers = (numbers - numbers.mean(0)) / numbers.std(0)
        places = table[["origin", "destination"]].to_numpy(np.int64)
        delays = table["delay"].to_numpy(np.float32)
        dataset = TensorDataset(*map(torch.from_numpy, (numbers, places, delays)))
        chosen = torch.utils.data.RandomSampler(dataset, num_samples=PER_EPOCH)
        return DataLoader(dataset, self.batch_size, sampler=chosen)


class Delay(lightning.LightningModule):
    def __init__(self, width=512):
        super().__init__()
        self.airports = nn.Embedding(AIRPORTS, 16)
        self.layers = nn.Sequential(
            nn.Linear(9 + 32, width), nn.SiLU(), nn.LayerNorm(width),
            nn.Linear(width, width), nn.SiLU(), nn.LayerNorm(width),
            nn.Linear(width, 1),
        )  # fmt: skip

    def training_step(self, batch, _):
        numbers, places, delays = batch
        inputs = torch.cat([numbers, self.airports(places).flatten(1)], dim=1)
        loss = nn.functional.l1_loss(self.layers(inputs).squeeze(1), delays)
        self.log("train_loss", loss, on_step=False, on_epoch=True, batch_size=len(delays))
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


class Speed(lightning.Callback):
    def on_train_start(self, _trainer, _module):
        self.last = time.perf_counter()

    def on_train_epoch_end(self, trainer, _module):
        now = time.perf_counter()
        rate = PER_EPOCH / (now - self.last)
        self.last = now
        print(f"epoch {trainer.current_epoch}: {rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(46)
    data = FlightData(args.data / "flights.csv", args.batch_size)
    data.prepare_data()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        reload_dataloaders_every_n_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Speed()],
    )
    trainer.fit(Delay(), datamodule=data)


if __name__ == "__main__":
    main()
