"""Cells pasted on backgrounds, with albumentations. Bottleneck: a transform unpickles all of them each time.

Shows: one worker computes in pickle.load, below a transform.
Fix: unpickled once.
"""

# expected: read transform
# names: pickle.load
# advises: once
# needs: albumentations
# fix:
# -        with open(self.file, "rb") as stream:
# -            backgrounds = pickle.load(stream)
# -        return np.maximum(img, backgrounds[number])
# +        return np.maximum(img, self.cached[number])

import argparse
import pickle
import time
from pathlib import Path

import albumentations
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FILE = Path("backgrounds.pkl")


class Backgrounds(albumentations.ImageOnlyTransform):
    def __init__(self, file):
        super().__init__(p=1.0)
        self.file = file
        self.cached = pickle.loads(Path(file).read_bytes())

    def get_params(self):
        return {"number": int(torch.randint(500, ()))}

    def apply(self, img, number, **_):
        with open(self.file, "rb") as stream:
            backgrounds = pickle.load(stream)
        return np.maximum(img, backgrounds[number])


class Cells(Dataset):
    def __init__(self, augmentation):
        self.augmentation = augmentation

    def __len__(self):
        return 5000

    def __getitem__(self, index):
        cell = np.random.default_rng(index).integers(0, 200, (96, 96, 3), np.uint8)
        augmented = self.augmentation(image=cell)["image"]
        return torch.from_numpy(augmented).permute(2, 0, 1) / 255, index % 3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    file = Path(args.data) / FILE
    if not file.exists():
        rng = np.random.default_rng(0)
        file.write_bytes(pickle.dumps([rng.integers(0, 99, (96, 96, 3), np.uint8) for _ in range(500)]))
    torch.set_num_threads(1)
    augmentation = albumentations.Compose([albumentations.HorizontalFlip(), Backgrounds(str(file))])
    loader = DataLoader(Cells(augmentation), args.batch_size, shuffle=True, num_workers=1)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    net(torch.zeros(1, 3, 96, 96))
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for cells, stages in loader:
            loss = nn.functional.cross_entropy(net(cells), stages)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(loader.dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
