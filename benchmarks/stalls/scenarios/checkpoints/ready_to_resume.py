"""A recommender with Lightning. Bottleneck: ModelCheckpoint saves the model after each step.

Shows: the loader is far ahead; the training process serializes the tables of embeddings and Adam's moments.
Fix: save once per epoch.
"""

# expected: checkpoint
# names: ModelCheckpoint | every_n_train_steps | save_checkpoint | fit(
# advises: less often | seldom | epoch
# needs: lightning
# fix:
# -        every_n_train_steps=1,
# +        every_n_epochs=1,

import argparse
import tempfile
import time

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

USERS, ITEMS, RATINGS = 20_000, 8_000, 25_600


class TwoTowers(lightning.LightningModule):
    def __init__(self, width=32):
        super().__init__()
        self.users = nn.Embedding(USERS, width)
        self.items = nn.Embedding(ITEMS, width)
        self.head = nn.Sequential(
            nn.Linear(2 * width, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def on_train_epoch_start(self):
        self.start = time.perf_counter()

    def on_train_epoch_end(self):
        rate = RATINGS / (time.perf_counter() - self.start)
        print(f"epoch {self.current_epoch}: {rate:.1f} samples/s", flush=True)

    def training_step(self, batch, _):
        users, items, stars = batch
        both = torch.cat([self.users(users), self.items(items)], dim=1)
        return nn.functional.mse_loss(self.head(both).squeeze(1), stars)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(0)
    users, items = torch.randint(USERS, (RATINGS,)), torch.randint(ITEMS, (RATINGS,))
    ratings = TensorDataset(users, items, torch.randint(1, 6, (RATINGS,)).float())
    loader = DataLoader(ratings, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    folder = tempfile.TemporaryDirectory()
    checkpoints = ModelCheckpoint(
        dirpath=folder.name,
        every_n_train_steps=1,
    )
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        accelerator="cpu",
        callbacks=[checkpoints],
        logger=False,
        enable_model_summary=False,
        enable_progress_bar=False,
    )
    trainer.fit(TwoTowers(), loader)
    folder.cleanup()


if __name__ == "__main__":
    main()
