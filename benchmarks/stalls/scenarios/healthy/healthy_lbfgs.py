"""Temperatures along a rod, fitted with L-BFGS, without workers. Healthy: the step is the limit.

Shows: each step evaluates the model several times on the same batch; making the batch costs a few percent.
"""

# expected: healthy

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MEASUREMENTS, SENSORS = 6400, 48


class Rod(Dataset):
    """Noisy readings of the sensors along a rod that cools down, and the moment of the readings."""

    def __init__(self):
        generator = torch.Generator().manual_seed(32)
        self.moments = torch.rand(MEASUREMENTS, generator=generator)
        self.shapes = torch.randn(MEASUREMENTS, 5, generator=generator)
        places = torch.linspace(0, 1, SENSORS)
        self.waves = torch.stack([torch.sin(math.pi * order * places) for order in range(1, 6)])
        self.decay = torch.tensor([0.1 * order**2 for order in range(1, 6)])

    def __len__(self):
        return MEASUREMENTS

    def __getitem__(self, index):
        moment, shape = self.moments[index], self.shapes[index]
        before = shape @ self.waves + 0.01 * torch.randn(SENSORS)
        after = (shape * torch.exp(-self.decay * moment)) @ self.waves
        return torch.cat([before, moment[None]]), after


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=160)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    loader = DataLoader(Rod(), args.batch_size, shuffle=True)
    model = nn.Sequential(
        nn.Linear(SENSORS + 1, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, SENSORS)
    )
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=10, history_size=5)

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for before, after in loader:

            def closure(before=before, after=after):
                optimizer.zero_grad()
                loss = nn.functional.mse_loss(model(before), after)
                loss.backward()
                return loss

            loss = optimizer.step(closure)
            seen += len(before)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
