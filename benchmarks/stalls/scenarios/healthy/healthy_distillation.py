"""Letters, learned by a small net from a large one, with Lightning. Healthy: the step is the limit.

Shows: the teacher takes most of a step. The only worker mixes samples when it collates them; it waits mostly.
"""

# expected: healthy
# needs: lightning

import argparse
import time

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LETTERS, SIDE, KINDS = 768, 32, 26


def draw_letters():
    """Strokes at places that depend on the letter, with noise."""
    rng = np.random.default_rng(74)
    shapes = rng.random((KINDS, SIDE // 4, SIDE // 4)) > 0.6
    kinds = rng.integers(0, KINDS, LETTERS)
    images = shapes[kinds].repeat(4, axis=1).repeat(4, axis=2) + rng.normal(0, 0.3, (LETTERS, SIDE, SIDE))
    return images.astype(np.float32), kinds


class Letters(Dataset):
    def __init__(self):
        self.images, self.kinds = draw_letters()

    def __len__(self):
        return LETTERS

    def __getitem__(self, index):
        shift = np.random.randint(-3, 4, 2)
        return np.roll(self.images[index], shift, axis=(0, 1)), self.kinds[index]


class MixingCollate:
    """Mixup and CutMix, by turns."""

    def __init__(self, alpha):
        self.alpha = alpha

    def __call__(self, samples):
        images = torch.from_numpy(np.stack([image for image, _ in samples]))[:, None]
        targets = nn.functional.one_hot(torch.tensor([kind for _, kind in samples]), KINDS).float()
        order, share = torch.randperm(len(samples)), np.random.beta(self.alpha, self.alpha)
        if np.random.random() < 0.5:
            images = share * images + (1 - share) * images[order]
        else:
            side = int(SIDE * (1 - share) ** 0.5)
            top, left = np.random.randint(0, SIDE - side + 1, 2)
            box = (..., slice(top, top + side), slice(left, left + side))
            images[box] = images[order][box]
            share = 1 - (side / SIDE) ** 2
        return images.float(), (share * targets + (1 - share) * targets[order]).float()


def conv_net(width, depth):
    layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(16 * width, KINDS))


class Distillation(lightning.LightningModule):
    def __init__(self, temperature=3.0):
        super().__init__()
        self.temperature = temperature
        self.teacher = conv_net(56, 5).requires_grad_(False).eval()
        self.student = conv_net(16, 2)

    def training_step(self, batch, _batch_idx):
        images, targets = batch
        self.teacher.eval()
        with torch.no_grad():
            wanted = (self.teacher(images) / self.temperature).softmax(1)
        scores = self.student(images)
        soft = nn.functional.kl_div((scores / self.temperature).log_softmax(1), wanted, reduction="batchmean")
        hard = nn.functional.cross_entropy(scores, targets)
        self.log_dict({"soft": soft, "hard": hard}, on_step=True, on_epoch=True)
        return self.temperature**2 * soft + hard

    def configure_optimizers(self):
        return torch.optim.AdamW(self.student.parameters(), lr=2e-3)


class Speed(lightning.Callback):
    def on_train_epoch_start(self, _trainer, _module):
        self.start = time.perf_counter()

    def on_train_epoch_end(self, trainer, _module):
        rate = LETTERS / (time.perf_counter() - self.start)
        print(f"epoch {trainer.current_epoch}: {rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--mix", type=float, default=0.4)
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(74, verbose=False)
    loader = DataLoader(
        Letters(),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=1,
        collate_fn=MixingCollate(args.mix),
        persistent_workers=True,
    )
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        callbacks=[Speed()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Distillation(), loader)


if __name__ == "__main__":
    main()
