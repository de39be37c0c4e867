"""Recommendations with Lightning. Bottleneck: random.choices draws ten times as many pairs as are used.

Shows: the training thread is in random.py at the start of each epoch.
Fix: draw as many as `limit_train_batches` takes.
"""

# expected: sampler
# names: ByPopularity | choices
# advises: as many as | fewer
# needs: lightning
# fix:
# -    sampler = ByPopularity(len(pairs), draws=10 * BATCHES * args.batch_size)
# +    sampler = ByPopularity(len(pairs), draws=BATCHES * args.batch_size)

import argparse
import random
import time

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

USERS, ITEMS, BATCHES = 5_000, 20_000, 150


class Pairs(Dataset):
    def __len__(self):
        return USERS * 100

    def __getitem__(self, pair):
        return pair % USERS, (pair * 7919) % ITEMS, float(pair % 3 == 0)


class ByPopularity:
    """Pairs in proportion to how often they are clicked."""

    def __init__(self, count, draws):
        self.population = range(count)
        self.cumulated = torch.rand(count).cumsum(0).tolist()
        self.draws = draws

    def __len__(self):
        return self.draws

    def draw_pairs(self):
        return random.choices(self.population, cum_weights=self.cumulated, k=self.draws)

    def __iter__(self):
        yield from self.draw_pairs()


class Factors(lightning.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.users, self.items = nn.Embedding(USERS, width), nn.Embedding(ITEMS, width)

    def on_fit_start(self):
        self.start = time.perf_counter()

    def on_train_epoch_end(self):
        seconds, self.start = time.perf_counter() - self.start, time.perf_counter()
        print(f"{BATCHES * self.trainer.train_dataloader.batch_size / seconds:.1f} samples/s", flush=True)

    def training_step(self, batch, _):
        users, items, clicked = batch
        scores = (self.users(users) * self.items(items)).sum(1)
        return nn.functional.binary_cross_entropy_with_logits(scores, clicked.float())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()

    torch.set_num_threads(1)
    pairs = Pairs()
    sampler = ByPopularity(len(pairs), draws=10 * BATCHES * args.batch_size)
    loader = DataLoader(pairs, batch_size=args.batch_size, sampler=sampler)
    lightning.Trainer(
        max_epochs=args.epochs, accelerator="cpu", limit_train_batches=BATCHES, logger=False,
        enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
    ).fit(Factors(), loader)  # fmt: skip


if __name__ == "__main__":
    main()
