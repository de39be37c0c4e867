"""Boats on a river, by cameras. Bottleneck: one of two workers gets all days, the other all nights.

Files alternate, as do workers, and by day there are fifteen times as many images as by night.
Shows: one worker is done within a fraction of the epoch; then the other computes alone, and a core is idle.
Fix: distribute the files by size; or another number of workers.
"""

# expected: workers straggler
# fix:
# -        files = sorted(self.folder.glob("*.rec"))
# +        files = sorted(self.folder.glob("*.rec"), key=lambda file: file.stat().st_size)

import argparse
import io
import struct
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

DATES, BY_DAY, BY_NIGHT = 6, 120, 8
SIZE, SMALL, BOATS = (576, 416), (112, 80), 4
HEADER = struct.Struct("<IB")


def draw_river(rng, boats, night, noise):
    light = 0.3 if night else 1.0
    image = Image.new("RGB", SIZE, (150, 190, 220))
    pen = ImageDraw.Draw(image)
    pen.rectangle([0, 150, SIZE[0], SIZE[1]], fill=tuple(int(light * value) for value in (90, 120, 160)))
    for _ in range(boats):
        x, y = int(rng.integers(10, 510)), int(rng.integers(170, 380))
        pen.polygon([(x, y), (x + 50, y), (x + 40, y + 20), (x + 10, y + 20)], fill=(200, 60, 40))
    return Image.blend(image, noise, 0.25)


def record(folder):
    """A file for each half of a day; in it, the images behind each other, each after its size and label."""
    rng = np.random.default_rng(68)
    noise = Image.effect_noise(SIZE, 60).convert("RGB")
    for date in range(1, DATES + 1):
        for part, count in (("a", BY_DAY), ("b", BY_NIGHT)):
            with open(folder / f"2024-05-{date:02}{part}.rec", "wb") as out:
                for boats in rng.integers(0, BOATS, count).tolist():
                    file = io.BytesIO()
                    draw_river(rng, boats, part == "b", noise).save(file, "JPEG", quality=88)
                    out.write(HEADER.pack(file.tell(), boats) + file.getvalue())


def read_records(path):
    with open(path, "rb") as file:
        while header := file.read(HEADER.size):
            size, boats = HEADER.unpack(header)
            yield file.read(size), boats


def shuffled(stream, rng, size=64):
    """Gives elements in an order that is random within the size of its buffer."""
    buffer = []
    for element in stream:
        buffer.append(element)
        if len(buffer) == size:
            yield buffer.pop(rng.integers(size))
    rng.shuffle(buffer)
    yield from buffer


class River(IterableDataset):
    def __init__(self, folder):
        self.folder = folder

    def __iter__(self):
        files = sorted(self.folder.glob("*.rec"))
        info = get_worker_info()
        if info is not None:
            files = files[info.id :: info.num_workers]
        rng = np.random.default_rng(torch.randint(2**31, ()).item())
        rng.shuffle(files)
        stream = (sample for file in files for sample in read_records(file))
        for jpeg, boats in shuffled(stream, rng):
            yield self.prepare(jpeg), boats

    def prepare(self, jpeg):
        image = Image.open(io.BytesIO(jpeg)).resize(SMALL, Image.Resampling.BICUBIC)
        pixels = np.asarray(image, dtype=np.float32).transpose(2, 0, 1)
        return torch.from_numpy((pixels - pixels.mean()) / (pixels.std() + 1))


def build_model(width=10):
    return nn.Sequential(
        nn.Conv2d(3, width, 5, stride=4), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, BOATS),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    folder = Path(args.data) / "river"
    if not folder.exists():
        partial = folder.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        record(partial)
        partial.rename(folder)
    torch.set_num_threads(1)
    loader = DataLoader(River(folder), args.batch_size, num_workers=2, persistent_workers=True)
    model = build_model()
    model(torch.zeros(1, 3, *SMALL[::-1]))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        seen = right = 0
        for images, boats in loader:
            scores = model(images)
            loss = nn.functional.cross_entropy(scores, boats)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (scores.argmax(1) == boats).sum().item()
            seen += len(boats)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: {right / seen:.1%} counted right, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
