"""Ripeness of fruit from photographs, with transformers' Trainer. Bottleneck: by default, it has no workers.

Shows: decoding and training take turns in one process, each about half of the time; a core is idle.
Fix: dataloader_num_workers=1.
"""

# expected: workers
# names: num_workers | TrainingArguments | Trainer( | trainer.train
# advises: workers
# needs: transformers accelerate
# fix:
# -        remove_unused_columns=False,
# +        remove_unused_columns=False,
# +        dataloader_num_workers=1,
# +        dataloader_persistent_workers=True,

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFilter
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, ViTConfig, ViTForImageClassification

PHOTOS, REPEATED = 192, 5
CLASSES = ["unripe", "ripe", "overripe"]


def take_photos(folder):
    """A fruit on a table; its color and its spots tell how ripe it is."""
    partial = folder.with_name("fruit-partial")
    partial.mkdir(exist_ok=True)
    rng = np.random.default_rng(47)
    colors = [(120, 180, 60), (220, 190, 40), (150, 110, 40)]
    for number in range(PHOTOS):
        label = number % 3
        photo = Image.fromarray(rng.integers(90, 160, (30, 40, 3), dtype=np.uint8)).resize((480, 360))
        pen = ImageDraw.Draw(photo)
        x, y = (int(value) for value in rng.integers(90, 270, size=2))
        pen.ellipse([x - 70, y - 55, x + 70, y + 55], fill=colors[label])
        for _ in range(12 * label):
            dx, dy = (int(value) for value in rng.integers(-45, 45, size=2))
            pen.ellipse([x + dx - 4, y + dy - 4, x + dx + 4, y + dy + 4], fill=(70, 50, 20))
        photo = photo.filter(ImageFilter.GaussianBlur(1))
        pixels = np.asarray(photo).astype(int) + rng.integers(-8, 9, (360, 480, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(
            partial / f"{number:04}-{label}.jpg", quality=90
        )
    os.rename(partial, folder)


class Fruit(Dataset):
    def __init__(self, folder, size):
        self.paths = sorted(folder.glob("*.jpg")) * REPEATED
        self.size = size

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, i):
        path = self.paths[i]
        image = Image.open(path).convert("RGB").resize((self.size, self.size), Image.Resampling.BILINEAR)
        pixel_values = torch.from_numpy(np.array(image)).permute(2, 0, 1) / 127.5 - 1
        return {"pixel_values": pixel_values, "labels": int(path.stem[-1])}


class ThroughputCallback(TrainerCallback):
    def __init__(self, samples):
        self.samples = samples

    def on_epoch_begin(self, _args, _state, _control, **_kwargs):
        self.start = time.perf_counter()

    def on_epoch_end(self, _args, state, _control, **_kwargs):
        rate = self.samples / (time.perf_counter() - self.start)
        print(f"epoch {state.epoch:.0f}: {rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    folder = Path(args.data) / "fruit"
    if not folder.exists():
        take_photos(folder)
    if args.epochs == 0:
        return
    config = ViTConfig(
        image_size=96,
        patch_size=16,
        hidden_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=288,
        id2label=dict(enumerate(CLASSES)),
        label2id={name: number for number, name in enumerate(CLASSES)},
    )
    train_dataset = Fruit(folder, config.image_size)
    training_args = TrainingArguments(
        output_dir=str(Path(args.data) / "fruit-vit"),
        per_device_train_batch_size=args.batch_size,
        num_train_epochs=args.epochs,
        learning_rate=5e-4,
        logging_steps=100,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    trainer = Trainer(
        model=ViTForImageClassification(config),
        args=training_args,
        train_dataset=train_dataset,
        callbacks=[ThroughputCallback(len(train_dataset))],
    )
    trainer.train()


if __name__ == "__main__":
    main()
