"""Breaths in recordings, with dropped layers. Bottleneck: the model is compiled for each choice of layers.

Shows: most steps spend a tenth of a second or more in torch._dynamo; the loader is far ahead.
Fix: compile each layer instead.
"""

# expected: recompile
# names: torch.compile(model | compiled( | Encoder | kept | keep
# fix:
# -    compiled = torch.compile(model, backend="aot_eager")
# +    compiled = model
# +    for layer in model.layers:
# +        layer.compile(backend="aot_eager")

import argparse
import random
import time

import numpy as np
import torch
import torch._dynamo
from torch import nn
from torch.utils.data import DataLoader, Dataset

RECORDINGS, FRAMES, BANDS, LAYERS, KINDS = 960, 80, 40, 8, 4

torch._dynamo.config.recompile_limit = 5_000
torch._dynamo.config.accumulated_recompile_limit = 5_000


class Breaths(Dataset):
    """Bands of recordings of 80 frames, from a random start."""

    def __init__(self):
        rng = np.random.default_rng(27)
        self.bands = rng.standard_normal((RECORDINGS, 2 * FRAMES, BANDS), dtype=np.float32)

    def __len__(self):
        return RECORDINGS

    def __getitem__(self, index):
        start = np.random.randint(FRAMES)
        return self.bands[index, start : start + FRAMES].T.copy(), index % KINDS


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.wide = nn.Conv1d(width, 2 * width, 5, padding=2)

    def forward(self, x):
        return x + nn.functional.glu(self.wide(self.norm(x)), dim=1)


class Encoder(nn.Module):
    def __init__(self, width=72):
        super().__init__()
        self.first = nn.Conv1d(BANDS, width, 1)
        self.layers = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.head = nn.Linear(width, KINDS)

    def forward(self, bands, keep):
        x = self.first(bands)
        for layer, kept in zip(self.layers, keep, strict=True):
            if kept:
                x = layer(x)
        return self.head(x.mean(2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--layer-drop", type=float, default=0.3)
    args = parser.parse_args()

    torch.set_num_threads(1)
    random.seed(0)
    loader = DataLoader(
        Breaths(), args.batch_size, shuffle=True, num_workers=1, persistent_workers=True, drop_last=True
    )
    model = Encoder()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for bands, kinds in loader:
            keep = [random.random() > args.layer_drop for _ in range(LAYERS)]
            loss = nn.functional.cross_entropy(compiled(bands, keep), kinds)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(kinds)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
