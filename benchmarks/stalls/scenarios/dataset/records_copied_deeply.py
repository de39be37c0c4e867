"""Keypoints of people in crowds. Bottleneck: each sample begins as a deep copy of its record.

Shows: both workers compute in copy.py all the time.
Fix: a shallow copy, as only the outermost dictionary is changed.
"""

# expected: dataset
# names: copy.deepcopy | map_record | __getitem__
# fix:
# -        record = copy.deepcopy(self.records[index])
# +        record = copy.copy(self.records[index])

import argparse
import copy
import random
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

IMAGES, SIDE, PEOPLE, JOINTS, OUTLINE = 3200, 96, 30, 17, 120


def make_records():
    """As the annotations are written: a dictionary per image, with one for each person in it."""
    rng = random.Random(30)
    records = []
    for number in range(IMAGES // 16):
        people = [
            {
                "bbox": [rng.uniform(0, SIDE) for _ in range(4)],
                "keypoints": [rng.uniform(0, SIDE) for _ in range(3 * JOINTS)],
                "segmentation": [[rng.uniform(0, SIDE) for _ in range(2 * OUTLINE)]],
                "iscrowd": 0,
                "category_id": 1,
            }
            for _ in range(PEOPLE)
        ]
        records.append({"image_id": number, "annotations": people, "license": 3})
    return records


class Crowds(Dataset):
    def __init__(self):
        self.records = make_records()
        shape = (len(self.records), 3, SIDE, SIDE)
        self.images = np.random.default_rng(31).integers(0, 256, shape, dtype=np.uint8)

    def __len__(self):
        return IMAGES

    def map_record(self, index):
        record = copy.deepcopy(self.records[index])
        record["image"] = torch.from_numpy(self.images[index])
        people = record.pop("annotations")
        joints = torch.tensor([person["keypoints"] for person in people])
        record["joints"] = joints.unflatten(1, (JOINTS, 3))[..., :2] / SIDE
        return record

    def __getitem__(self, index):
        record = self.map_record(index % len(self.records))
        if random.random() < 0.5:
            record["image"] = record["image"].flip(2)
            record["joints"] = record["joints"] * torch.tensor([-1.0, 1.0]) + torch.tensor([1.0, 0.0])
        return record


class Pose(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 5, stride=4), nn.ReLU(), nn.Conv2d(width, width, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(5), nn.Flatten(),
        )  # fmt: skip
        self.people = nn.Linear(25 * width, PEOPLE * JOINTS * 2)

    def forward(self, images):
        return self.people(self.body(images.float() / 255)).unflatten(1, (PEOPLE, JOINTS, 2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Crowds(), args.batch_size, shuffle=True, num_workers=2)
    model = Pose()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for batch in loader:
            loss = nn.functional.l1_loss(model(batch["image"]), batch["joints"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(batch["image"])
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
