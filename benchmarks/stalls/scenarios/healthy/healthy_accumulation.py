"""A wide net on photographs, with gradients accumulated over 4 batches and a checkpoint per epoch. Healthy.

Shows: each fourth step takes longer, and none waits; a worker is far ahead of the step.
Fix: nothing in the loader.
"""

# expected: healthy
# data: pictures

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.models import mobilenet_v3_large

ACCUMULATE = 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    torch.set_num_threads(1)
    transform = transforms.Compose(
        [transforms.Resize(128), transforms.CenterCrop(128), transforms.ToTensor()]
    )
    dataset = datasets.ImageFolder(args.data, transform)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=1, drop_last=True)
    model = mobilenet_v3_large(num_classes=len(dataset.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with tempfile.TemporaryDirectory() as folder:
        for epoch in range(args.epochs):
            start = time.perf_counter()
            for step, (images, labels) in enumerate(loader, start=1):
                loss = nn.functional.cross_entropy(model(images), labels) / ACCUMULATE
                loss.backward()
                if step % ACCUMULATE == 0:
                    optimizer.step()
                    optimizer.zero_grad()
            torch.save(model.state_dict(), Path(folder) / "last.pt")
            rate = len(loader) * args.batch_size / (time.perf_counter() - start)
            print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
