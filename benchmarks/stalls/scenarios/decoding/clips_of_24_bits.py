"""Drum loops in WAV files of 24 bits, with Lightning. Bottleneck: each value is made of its bytes in Python.

Shows: both workers are busy all the time in `read_wave`; hardly anything is read from the disk.
Fix: np.frombuffer, and the three bytes of all values put together at once.
"""

# expected: decode dataset
# names: from_bytes | read_wave | to_signed
# needs: lightning
# fix:
# -    return np.array([to_signed(raw[at : at + width]) for at in range(0, len(raw), width)], np.float32)
# +    parts = np.frombuffer(raw, dtype=np.uint8).reshape(-1, width).astype(np.int32)
# +    values = parts[:, 0] | parts[:, 1] << 8 | parts[:, 2] << 16
# +    return ((values << 8) >> 8).astype(np.float32) / 2**23

import argparse
import time
import wave
from pathlib import Path

import lightning
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

RATE, SECONDS, LOOPS, STYLES = 16_000, 2, 480, 6


def render_loop(rng, style):
    """Beats at the tempo of its style: noise that dies away."""
    clock = np.arange(RATE * SECONDS) % int(RATE * 60 / (90 + 12 * style))
    return 0.5 * np.exp(-clock / 900) * rng.standard_normal(len(clock))


def write_loops(folder):
    rng = np.random.default_rng(62)
    for number in range(LOOPS):
        values = np.clip(render_loop(rng, number % STYLES), -1, 1) * (2**23 - 1)
        with wave.open(str(folder / f"loop{number:03}-{number % STYLES}.wav"), "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(3)
            out.setframerate(RATE)
            out.writeframes(values.astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes())


def to_signed(raw):
    return int.from_bytes(raw, "little", signed=True) / 2**23


def read_wave(path):
    """Values from -1 to 1."""
    with wave.open(str(path), "rb") as file:
        width = file.getsampwidth()
        raw = file.readframes(file.getnframes())
    return np.array([to_signed(raw[at : at + width]) for at in range(0, len(raw), width)], np.float32)


class DrumLoops(Dataset):
    def __init__(self, folder):
        self.paths = sorted(folder.glob("*.wav"))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        loop = np.roll(read_wave(path), np.random.randint(RATE))
        return torch.from_numpy(loop), int(path.stem[-1])


class LoopData(lightning.LightningDataModule):
    def __init__(self, root, batch_size):
        super().__init__()
        self.folder = Path(root) / "drum-loops"
        self.batch_size = batch_size

    def prepare_data(self):
        if not self.folder.exists():
            partial = self.folder.with_suffix(".partial")
            partial.mkdir(parents=True, exist_ok=True)
            write_loops(partial)
            partial.rename(self.folder)

    def train_dataloader(self):
        return DataLoader(
            DrumLoops(self.folder), self.batch_size, shuffle=True, num_workers=2, persistent_workers=True
        )


class StyleClassifier(lightning.LightningModule):
    def __init__(self, bands=48):
        super().__init__()
        self.save_hyperparameters()
        self.register_buffer("window", torch.hann_window(512))
        self.net = nn.Sequential(
            nn.Conv1d(257, bands, 1), nn.ReLU(), nn.Conv1d(bands, 64, 9, stride=2), nn.ReLU(),
            nn.Conv1d(64, 64, 9, stride=2), nn.ReLU(), nn.AdaptiveMaxPool1d(1), nn.Flatten(),
            nn.Linear(64, STYLES),
        )  # fmt: skip

    def training_step(self, batch, _batch_idx):
        loops, styles = batch
        spectrum = torch.stft(loops, 512, 128, window=self.window, return_complex=True).abs()
        loss = nn.functional.cross_entropy(self.net(spectrum.add(1e-3).log()), styles)
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_epoch_start(self):
        self.started = time.monotonic()

    def on_train_epoch_end(self):
        rate = len(self.trainer.train_dataloader.dataset) / (time.monotonic() - self.started)
        print(f"epoch {self.current_epoch}: {rate:.1f} samples/s", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=12)
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(62)
    loops = LoopData(args.data, args.batch_size)
    loops.prepare_data()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(StyleClassifier(), datamodule=loops)


if __name__ == "__main__":
    main()
