"""3D convolutions on volumes. Bottleneck: each is inflated from a compressed .npz file in each epoch.

Shows: workers compute all the time in zipfile, called by np.load.
Fix: the same files written by np.savez instead of np.savez_compressed.
"""

# expected: read decode
# data: compressed
# fixed data: uncompressed

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Volumes(Dataset):
    def __init__(self, folder, crop=16):
        self.files = sorted(Path(folder).glob("*.npz"))
        self.crop = crop

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        with np.load(self.files[index]) as archive:
            volume, label = archive["volume"], int(archive["label"])
        z, y, x = (np.random.randint(size - self.crop + 1) for size in volume.shape)
        patch = volume[z : z + self.crop, y : y + self.crop, x : x + self.crop]
        return {"volume": torch.from_numpy(patch.astype(np.float32))[None] / 4096, "label": label}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=4)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Volumes(args.data)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv3d(1, 8, 3, stride=2), nn.ReLU(), nn.Conv3d(8, 16, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(16 * 27, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["volume"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
