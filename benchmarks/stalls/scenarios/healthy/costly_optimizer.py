"""Embeddings of 300,000 items. The loader is healthy; Adam updates all rows in each step, few were used.

Shows: steps don't wait; most of a step is the optimizer's.
Fix: nothing in the loader; sparse gradients and SparseAdam.
"""

# expected: healthy step

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ITEMS, PAIRS = 300_000, 50_000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: pairs are made up")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    pairs, liked = torch.randint(0, ITEMS, (PAIRS, 2)), torch.randint(0, 2, (PAIRS,)).float()
    loader = DataLoader(TensorDataset(pairs, liked), args.batch_size, shuffle=True, num_workers=1)
    embedding = nn.Embedding(ITEMS, 32)
    optimizer = torch.optim.Adam(embedding.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for batch, targets in loader:
            left, right = embedding(batch).unbind(1)
            loss = nn.functional.binary_cross_entropy_with_logits((left * right).sum(1), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = PAIRS / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
