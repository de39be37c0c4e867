"""An autoencoder on an endless stream of frames. Healthy: two workers stream, the step is the limit.

Shows: steps don't wait.
Fix: nothing in the loader.
"""

# expected: healthy

import argparse
import itertools
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


class Frames(IterableDataset):
    """Noise with a bright square, at random places; each worker draws from its own generator."""

    def __init__(self, side=64):
        self.side = side

    def __iter__(self):
        info = get_worker_info()
        generator = torch.Generator().manual_seed(info.seed if info else 0)
        while True:
            frame = torch.rand(1, self.side, self.side, generator=generator)
            y, x = torch.randint(0, self.side - 8, (2,), generator=generator).tolist()
            frame[:, y : y + 8, x : x + 8] = 1.0
            yield frame


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: frames are made up")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200, help="of an epoch")
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Frames(), batch_size=args.batch_size, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 1, 3, padding=1),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters())
    batches = iter(loader)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for frames in itertools.islice(batches, args.steps):
            loss = nn.functional.mse_loss(model(frames), frames)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = args.steps * args.batch_size / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
