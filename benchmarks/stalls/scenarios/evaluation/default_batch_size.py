"""Melodies, tested after each epoch. Bottleneck: the loader of the test has no batch size, which means one.

Shows: training steps hardly wait; most of the time goes into `perplexity`, whose batches have one melody.
Fix: large batches for the test, too.
"""

# expected: validation
# names: perplexity | batch_size=1
# fix:
# -    held_out = DataLoader(Melodies(2000, seed=2))
# +    held_out = DataLoader(Melodies(2000, seed=2), args.batch_size)

import argparse
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH, NOTES = 32, 64


class Melodies(Dataset):
    """Walks up and down the scale."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        steps = torch.randint(-2, 3, (count, LENGTH + 1), generator=generator)
        self.notes = (NOTES // 2 + steps.cumsum(1)) % NOTES

    def __len__(self):
        return len(self.notes)

    def __getitem__(self, index):
        return self.notes[index]


class Composer(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.notes = nn.Embedding(NOTES, width)
        self.memory = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, NOTES)

    def loss(self, notes):
        hidden, _ = self.memory(self.notes(notes[:, :-1]))
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), notes[:, 1:].flatten())


def perplexity(model, loader):
    model.eval()
    with torch.inference_mode():
        losses = [model.loss(notes).item() for notes in loader]
    model.train()
    return math.exp(sum(losses) / len(losses))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=96)
    args = parser.parse_args()

    torch.set_num_threads(1)
    train = DataLoader(Melodies(4800, seed=1), args.batch_size, shuffle=True)
    held_out = DataLoader(Melodies(2000, seed=2))
    model = Composer()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for notes in train:
            loss = model.loss(notes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(notes)
        value = perplexity(model, held_out)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: perplexity {value:.1f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
