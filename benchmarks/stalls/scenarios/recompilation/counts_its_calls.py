"""A compiled vector quantizer for products. Bottleneck: it counts its calls, so each step compiles it again.

Shows: each step takes 0.1 s or more in torch._dynamo; the loader is far ahead.
Fix: count outside of the compiled module, or in a tensor.
"""

# expected: recompile
# names: compile | calls | Quantizer | forward
# fix:
# -        self.calls = 0
# +        self.register_buffer("calls", torch.zeros(()))
#
# -        self.calls += 1
# -        noise = 0.1 if self.training and self.calls < WARMUP else 0.0
# -        codes = ((vectors[:, None] - self.book.weight) ** 2).sum(2).neg().div(0.5 + noise).softmax(1)
# +        self.calls += 1
# +        noise = 0.1 * (self.calls < WARMUP)
# +        codes = ((vectors[:, None] - self.book.weight) ** 2).sum(2).neg().div(0.5 + noise).softmax(1)

import argparse
import time

import torch
import torch._dynamo
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch._dynamo.config.recompile_limit = 100_000
torch._dynamo.config.accumulated_recompile_limit = 100_000

PRODUCTS, COLUMNS, CODES, WARMUP = 5120, 64, 512, 50_000


class Quantizer(nn.Module):
    """Encodes a product as a mixture of codes, which is softer as long as training warms up."""

    def __init__(self, width=64):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(COLUMNS, 256), nn.SiLU(), nn.Linear(256, width))
        self.decoder = nn.Sequential(nn.Linear(width, 256), nn.SiLU(), nn.Linear(256, COLUMNS))
        self.book = nn.Embedding(CODES, width)
        self.calls = 0

    def forward(self, columns):
        vectors = self.encoder(columns)
        self.calls += 1
        noise = 0.1 if self.training and self.calls < WARMUP else 0.0
        codes = ((vectors[:, None] - self.book.weight) ** 2).sum(2).neg().div(0.5 + noise).softmax(1)
        return self.decoder(codes @ self.book.weight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    products = torch.randn(PRODUCTS, COLUMNS)
    loader = DataLoader(TensorDataset(products), args.batch_size, shuffle=True)
    model = Quantizer()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for (columns,) in loader:
            loss = nn.functional.mse_loss(compiled(columns), columns)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(columns)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
