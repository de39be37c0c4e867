"""Roads in satellite images, with Lightning. Bottleneck: the loader for validation has batches of one.

Shows: training steps hardly wait; more than half of the time goes into validation.
Fix: the same batches as in training.
"""

# expected: validation
# names: validation_step | val_loader | fit( | batch_size=1
# needs: lightning
# fix:
# -    val_loader = DataLoader(Roads(1500, seed=24), batch_size=1, num_workers=1, persistent_workers=True)
# +    val_loader = DataLoader(Roads(1500, seed=24), args.batch_size, num_workers=1, persistent_workers=True)

import argparse
import time

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 48


class Roads(Dataset):
    """Tiles with straight roads, and the masks of these."""

    def __init__(self, count, seed):
        rng = np.random.default_rng(seed)
        self.tiles = rng.integers(0, 200, (count, 3, SIDE, SIDE), dtype=np.uint8)
        angles, shifts = rng.uniform(0, np.pi, count), rng.uniform(-10, 10, count)
        rows, columns = np.mgrid[:SIDE, :SIDE] - SIDE / 2
        across = np.sin(angles)[:, None, None] * rows + np.cos(angles)[:, None, None] * columns
        self.masks = np.abs(across - shifts[:, None, None]) < 3
        self.tiles += 50 * self.masks[:, None].astype(np.uint8)

    def __len__(self):
        return len(self.tiles)

    def __getitem__(self, index):
        return torch.from_numpy(self.tiles[index]).float() / 255, torch.from_numpy(self.masks[index])


class Segmenter(lightning.LightningModule):
    def __init__(self, width=12):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 4, stride=2, padding=1), nn.ReLU())
        self.middle = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1)

    def forward(self, tiles):
        tiles = self.down(tiles)
        return self.up(tiles + self.middle(tiles)).squeeze(1)

    def on_fit_start(self):
        self.start, self.seen = time.perf_counter(), 0

    def training_step(self, batch, _):
        tiles, masks = batch
        self.seen += len(tiles)
        return nn.functional.binary_cross_entropy_with_logits(self(tiles), masks.float())

    def validation_step(self, batch, _):
        tiles, masks = batch
        found = self(tiles) > 0
        both, either = (found & masks).sum((1, 2)), (found | masks).sum((1, 2))
        self.log("overlap", (both / either.clamp(1)).mean(), batch_size=len(tiles))

    def on_train_epoch_end(self):
        seconds, self.start = time.perf_counter() - self.start, time.perf_counter()
        overlap = self.trainer.callback_metrics["overlap"].item()
        print(f"epoch {self.current_epoch}: {overlap:.3f}, {self.seen / seconds:.1f} samples/s", flush=True)
        self.seen = 0

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=2e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(0)
    loader = DataLoader(
        Roads(3600, seed=23), args.batch_size, shuffle=True, num_workers=1, persistent_workers=True
    )
    val_loader = DataLoader(Roads(1500, seed=24), batch_size=1, num_workers=1, persistent_workers=True)
    trainer = lightning.Trainer(
        max_epochs=args.epochs, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_model_summary=False, enable_progress_bar=False, num_sanity_val_steps=0,
    )  # fmt: skip
    trainer.fit(Segmenter(), loader, val_loader)


if __name__ == "__main__":
    main()
