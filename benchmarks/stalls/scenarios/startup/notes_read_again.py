"""Poses of hands with Accelerate. Bottleneck: each epoch reads all annotations again, which stay the same.

Shows: between epochs, the training process parses thousands of small JSON files; batches come in time.
Fix: make the dataset and its loader once, before the epochs.
"""

# expected: startup dataset read
# names: from_folder | json.loads
# needs: accelerate
# fix:
# -    for epoch in range(args.epochs):
# -        began, count = time.perf_counter(), 0
# -        batches = accelerator.prepare(loader_of(folder, args.batch_size))
# +    batches = accelerator.prepare(loader_of(folder, args.batch_size))
# +    for epoch in range(args.epochs):
# +        began, count = time.perf_counter(), 0

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

HANDS, JOINTS, GESTURES = 9000, 21, 8


def annotate(folder):
    rng = np.random.default_rng(31)
    folder.mkdir()
    for number in range(HANDS):
        joints = rng.normal(size=(JOINTS, 3)).round(4)
        note = {"joints": joints.tolist(), "gesture": number % GESTURES, "quality": float(rng.random())}
        (folder / f"hand{number}.json").write_text(json.dumps(note))


class Hands(Dataset):
    def __init__(self, joints, gestures):
        self.joints, self.gestures = joints, gestures

    @classmethod
    def from_folder(cls, folder):
        notes = [json.loads(path.read_text()) for path in folder.iterdir()]
        notes = [note for note in notes if note["quality"] > 0.4]
        joints = torch.tensor([note["joints"] for note in notes])
        return cls(joints, torch.tensor([note["gesture"] for note in notes]))

    def __len__(self):
        return len(self.joints)

    def __getitem__(self, index):
        return self.joints[index] + 0.01 * torch.randn(JOINTS, 3), self.gestures[index]


def loader_of(folder, batch_size):
    return DataLoader(Hands.from_folder(folder), batch_size, shuffle=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=48)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    folder = Path(args.data) / "hands"
    if not folder.exists():
        annotate(folder)
    layer = nn.TransformerEncoderLayer(48, 4, 96, batch_first=True)
    model = nn.Sequential(
        nn.Linear(3, 48), nn.TransformerEncoder(layer, 1), nn.Flatten(), nn.Linear(JOINTS * 48, GESTURES)
    )
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-2))
    for epoch in range(args.epochs):
        began, count = time.perf_counter(), 0
        batches = accelerator.prepare(loader_of(folder, args.batch_size))
        for joints, gestures in batches:
            loss = nn.functional.cross_entropy(model(joints), gestures)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            count += len(joints)
        rate = count / (time.perf_counter() - began)
        accelerator.print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
