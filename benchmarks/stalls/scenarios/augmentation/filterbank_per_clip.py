"""Instruments, heard with Accelerate. Bottleneck: the filters of the mel scale are made again for each clip.

Shows: the worker spends most of its time in two nested loops in Python. The model is saved every 25 steps,
too, which costs little.
Fix: compute the filters once.
"""

# expected: transform dataset
# names: mel_filters | log_mel | MelSpectrogram
# needs: accelerate
# fix:
# -import argparse
# +import argparse
# +import functools
#
# -def mel_filters(rate, n_fft, n_mels):
# +@functools.cache
# +def mel_filters(rate, n_fft, n_mels):

import argparse
import math
import time
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, SECONDS = 22_050, 1
NOTES, INSTRUMENTS = 1120, 6


def mel_filters(rate, n_fft, n_mels):
    """Triangular filters, (n_mels, n_fft // 2 + 1)."""
    highest = 2595 * math.log10(1 + rate / 2 / 700)
    mels = np.linspace(0, highest, n_mels + 2)
    bins = np.floor((n_fft + 1) * 700 * (10 ** (mels / 2595) - 1) / rate)
    filters = np.zeros((n_mels, n_fft // 2 + 1), dtype=np.float32)
    for m in range(n_mels):
        for k in range(int(bins[m]), int(bins[m + 1])):
            filters[m, k] = (k - bins[m]) / (bins[m + 1] - bins[m])
        for k in range(int(bins[m + 1]), int(bins[m + 2])):
            filters[m, k] = (bins[m + 2] - k) / (bins[m + 2] - bins[m + 1])
    return torch.from_numpy(filters)


class MelSpectrogram:
    def __init__(self, rate=RATE, n_fft=4096, hop=1024, n_mels=80):
        self.rate, self.n_fft, self.hop, self.n_mels = rate, n_fft, hop, n_mels
        self.window = torch.hann_window(n_fft)

    def __call__(self, waveform):
        spectrum = torch.stft(waveform, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spectrum.real**2 + spectrum.imag**2
        return torch.log(mel_filters(self.rate, self.n_fft, self.n_mels) @ power + 1e-6)


class Notes(Dataset):
    """Notes of synthetic instruments, which differ in their overtones."""

    def __init__(self, transform):
        rng = np.random.default_rng(42)
        self.overtones = rng.random((INSTRUMENTS, 8)) / np.arange(1, 9)
        self.pitches = rng.uniform(80, 800, NOTES)
        self.labels = rng.integers(0, INSTRUMENTS, NOTES)
        self.time = np.arange(RATE * SECONDS, dtype=np.float32) / RATE
        self.cycle = np.sin(np.arange(8192) * (2 * np.pi / 8192)).astype(np.float32)
        timbre = [[level * self.cycle[np.arange(8192) * (n + 1) % 8192] for n, level in enumerate(levels)]
                  for levels in self.overtones]  # fmt: skip
        self.cycles = np.sum(timbre, axis=1, dtype=np.float32)
        self.transform = transform

    def __len__(self):
        return NOTES

    def __getitem__(self, index):
        label = int(self.labels[index])
        places = (self.time * (self.pitches[index] * 8192)).astype(np.int64) & 8191
        waveform = self.cycles[label][places] * np.exp(-3 * self.time)
        return self.transform(torch.from_numpy(waveform.astype(np.float32))), label


class ConvNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, INSTRUMENTS),
        )  # fmt: skip

    def forward(self, mels):
        return self.net(mels.unsqueeze(1))


def main():
    parser = argparse.ArgumentParser(description="Instrument classification")
    parser.add_argument("--data", required=True, help="checkpoints go here")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    dataset = Notes(MelSpectrogram())
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True
    )
    model = ConvNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, args.epochs * len(loader)))
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

    step = 0
    for epoch in range(args.epochs):
        started, losses = time.perf_counter(), []
        for mels, labels in loader:
            loss = nn.functional.cross_entropy(model(mels), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            step += 1
            if step % 25 == 0:
                torch.save(accelerator.get_state_dict(model), Path(args.data) / "instruments-last.pt")
        rate = len(losses) * args.batch_size / (time.perf_counter() - started)
        loss = torch.stack(losses).mean().item()
        accelerator.print(f"epoch {epoch} loss {loss:.3f} {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
