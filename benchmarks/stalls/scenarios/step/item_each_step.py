"""A deep MLP on tabular features. Bottleneck: the norm of every gradient is logged with .item(), each step.

Shows: the device waits for Python after each of some hundred .item() calls, and Python for the device.
Fix: norms kept on the device, read every hundredth step.
"""

# expected: synchronise
# data: features.pt
# needs: cuda
# fix:
# -                norms.setdefault(name, []).append(parameter.grad.norm().item())
# +                if seen % (100 * args.batch_size) == 0:
# +                    norms.setdefault(name, []).append(parameter.grad.norm().item())

import argparse
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU())

    def forward(self, x):
        return x + self.block(x)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("this script needs a GPU: torch.cuda.is_available() is False")

    device = torch.device(args.device)
    torch.set_float32_matmul_precision("high")
    features, labels = torch.load(args.data)
    dataset = TensorDataset(features, labels)
    loader = DataLoader(
        dataset,
        args.batch_size,
        shuffle=True,
        num_workers=8,
        pin_memory=True,
        drop_last=True,
        persistent_workers=True,
    )
    layers = [Residual(1024) for _ in range(32)]
    model = nn.Sequential(nn.Linear(features.shape[1], 1024), *layers, nn.Linear(1024, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        norms = {}
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            for name, parameter in model.named_parameters():
                norms.setdefault(name, []).append(parameter.grad.norm().item())
            optimizer.step()
            seen += len(y)
        text = f"epoch {epoch}: loss {loss.item():.3f}, first layer's gradient {norms['0.weight'][-1]:.4f}"
        print(f"{text}, {seen / (time.perf_counter() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
