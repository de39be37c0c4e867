"""Emotions from animated GIFs. Bottleneck: for one frame, all frames before it are decoded.

Shows: the worker is busy all the time, in Pillow's GifImagePlugin; it doesn't wait for the disk.
Fix: decode each animation once and keep its frames, in memory or as files of their own.
"""

# expected: decode
# names: seek | Image.open | convert
# fix:
# -from PIL import Image
# +from PIL import Image, ImageSequence
#
# -        self.paths = sorted(folder.glob("*.gif"))
# +        self.paths = [self.frames_of(path) for path in sorted(folder.glob("*.gif"))]
#
# -        with Image.open(self.paths[index % len(self.paths)]) as animation:
# -            animation.seek(number)
# -            frame = animation.convert("L")
# +        frame = self.paths[index % len(self.paths)][number]
#
# -    def __len__(self):
# +    def frames_of(self, path):
# +        with Image.open(path) as animation:
# +            return [frame.convert("L") for frame in ImageSequence.Iterator(animation)]
# +
# +    def __len__(self):

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

ANIMATIONS, FRAMES, SIDE, MOODS = 40, 60, 96, 5


def draw_animations(folder):
    rng = np.random.default_rng(9)
    folder.mkdir()
    for number in range(ANIMATIONS):
        still = rng.integers(0, 256, (SIDE + FRAMES, SIDE + FRAMES), dtype=np.uint8)
        views = [still[shift : shift + SIDE, shift : shift + SIDE] for shift in range(FRAMES)]
        frames = [Image.fromarray(view) for view in views]
        frames[0].save(folder / f"{number:03}.gif", save_all=True, append_images=frames[1:])


class Reactions(Dataset):
    """Some frame of a reaction, and its mood."""

    def __init__(self, folder, samples=1600):
        self.paths = sorted(folder.glob("*.gif"))
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        number = torch.randint(FRAMES, ()).item()
        with Image.open(self.paths[index % len(self.paths)]) as animation:
            animation.seek(number)
            frame = animation.convert("L")
        return torch.from_numpy(np.array(frame)).float()[None] / 255, index % ANIMATIONS % MOODS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    folder = Path(args.data) / "reaction-gifs"
    if not folder.exists():
        draw_animations(folder)
    loader = DataLoader(
        Reactions(folder), args.batch_size, shuffle=True, num_workers=1, persistent_workers=True
    )
    model = nn.Sequential(
        nn.Conv2d(1, 24, 5, stride=2), nn.ReLU(), nn.Conv2d(24, 48, 3, stride=2), nn.ReLU(),
        nn.Conv2d(48, 64, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, MOODS),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for frames, moods in loader:
            loss = nn.functional.cross_entropy(model(frames), moods)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(moods)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
