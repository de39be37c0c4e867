"""ResNet-18 in bfloat16 on frames. Bottleneck: batches of float32 are copied from unpinned memory.

Shows: the loader keeps up and so does the step alone, but the device idles during each copy.
Fix: pin_memory=True, and .to(device, non_blocking=True).
"""

# expected: copy
# data: frames.npy
# needs: cuda
# fix:
# -        drop_last=True,
# +        drop_last=True,
# +        pin_memory=True,
#
# -            frames, labels = frames.to(device), labels.to(device)
# +            frames, labels = (x.to(device, non_blocking=True) for x in (frames, labels))

import argparse
import os
import sys
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18


class Frames(Dataset):
    """Frames as uint8, 3 x 224 x 224 each, from one file that is mapped into memory."""

    def __init__(self, path):
        self.frames = np.load(path, mmap_mode="r")

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        frame = torch.from_numpy(self.frames[index].copy())
        return frame.float().div_(255), index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("this script needs a GPU: torch.cuda.is_available() is False")

    device = torch.device(args.device)
    torch.backends.cudnn.benchmark = True
    loader = DataLoader(
        Frames(args.data),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        drop_last=True,
        persistent_workers=True,
    )
    model = resnet18(num_classes=10).to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(args.epochs):
        start = time.perf_counter()
        for frames, labels in loader:
            frames, labels = frames.to(device), labels.to(device)
            with torch.autocast(device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(model(frames), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        text = f"epoch {epoch}: loss {loss.item():.3f}"
        rate = len(loader) * args.batch_size / (time.perf_counter() - start)
        print(f"{text}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
