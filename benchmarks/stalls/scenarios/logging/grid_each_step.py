"""An autoencoder of handwriting. Bottleneck: a grid of what it reconstructs is saved as PNG after each step.

Shows: the loader is far ahead; in the training process, save_image costs more than the step.
Fix: save it once per epoch.
"""

# expected: logging
# names: save_image | save_samples
# advises: less often | seldom | epoch
# needs: torchvision
# fix:
# -            save_samples(images, reconstructed, out / "latest.png")
# +            if step % 50 == 0:
# +                save_samples(images, reconstructed, out / "latest.png")

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset
from torchvision.utils import save_image

SIDE, LETTERS = 48, 3200


class Handwriting(Dataset):
    """Strokes of a pen: random curves, drawn as dots that fade."""

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        t = np.linspace(0, 1, 40)
        a, b, c, d = rng.uniform(0, 6, 4)
        x = SIDE / 2 + SIDE / 3 * np.sin((a + 2) * t + b)
        y = SIDE / 2 + SIDE / 3 * np.sin((c + 2) * t + d)
        image = np.zeros((SIDE, SIDE), dtype=np.float32)
        for dx in (0, 1):
            for dy in (0, 1):
                image[y.astype(int) + dy, x.astype(int) + dx] = 1 - 0.3 * dx - 0.3 * dy
        return torch.from_numpy(image[None])

    def __len__(self):
        return LETTERS


class VAE(nn.Module):
    def __init__(self, hidden=20):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 4, 2, 1), nn.ReLU(True), nn.Conv2d(12, 24, 4, 2, 1), nn.ReLU(True), nn.Flatten()
        )
        self.mean = nn.Linear(24 * 144, hidden)
        self.logvar = nn.Linear(24 * 144, hidden)
        self.decoder = nn.Sequential(
            nn.Linear(hidden, 24 * 144), nn.ReLU(True), nn.Unflatten(1, (24, 12, 12)),
            nn.ConvTranspose2d(24, 12, 4, 2, 1), nn.ReLU(True),
            nn.ConvTranspose2d(12, 1, 4, 2, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, images):
        codes = self.encoder(images)
        mean, logvar = self.mean(codes), self.logvar(codes)
        latent = mean + torch.exp(0.5 * logvar) * torch.randn_like(mean)
        return self.decoder(latent), mean, logvar


def vae_loss(reconstructed, images, mean, logvar):
    pixels = nn.functional.binary_cross_entropy(reconstructed, images, reduction="sum")
    divergence = -0.5 * torch.sum(1 + logvar - mean.pow(2) - logvar.exp())
    return (pixels + divergence) / len(images)


def save_samples(images, reconstructed, path):
    pairs = torch.stack([images, reconstructed.detach()], dim=1).flatten(0, 1)
    save_image(pairs, path, nrow=16)


def main():
    parser = argparse.ArgumentParser(description="VAE")
    parser.add_argument("--data", type=str, required=True, help="samples are saved here")
    parser.add_argument("--epochs", type=int, default=10, metavar="N")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    out = Path(args.data) / "vae-samples"
    os.makedirs(out, exist_ok=True)
    loader = DataLoader(
        Handwriting(), batch_size=args.batch_size, shuffle=True, num_workers=1, persistent_workers=True
    )
    model = VAE()
    optimizer = optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    for epoch in range(1, args.epochs + 1):
        model.train()
        train_loss, start = 0.0, time.perf_counter()
        for images in loader:
            optimizer.zero_grad()
            reconstructed, mean, logvar = model(images)
            loss = vae_loss(reconstructed, images, mean, logvar)
            loss.backward()
            optimizer.step()
            train_loss += loss.item() * len(images)
            step += 1
            save_samples(images, reconstructed, out / "latest.png")
        rate = LETTERS / (time.perf_counter() - start)
        print(f"====> Epoch: {epoch} loss: {train_loss / LETTERS:.2f}  {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
