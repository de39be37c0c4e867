"""Sentences of similar length share a batch. Bottleneck: all lengths are sorted again for each batch.

Shows: the training thread is in the batch sampler whenever the step waits.
Fix: sort once, when the sampler is made.
"""

# expected: sampler
# names: nearest | sorted(range(len(self.lengths))
# advises: once
# fix:
# -        ordered = sorted(range(len(self.lengths)), key=lambda one: self.lengths[one])
# -        return ordered[place : place + self.batch_size]
# +        return self.ordered[place : place + self.batch_size]

import argparse
import random
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS = 4000


class Sentences(Dataset):
    def __init__(self, count=30_000):
        rng = random.Random(0)
        self.lengths = [rng.randint(5, 60) for _ in range(count)]

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        tokens = (torch.arange(self.lengths[index]) * (index + 1)) % WORDS
        return tokens, index % 2


class SimilarLengths:
    """Batches around a length that is drawn."""

    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = lengths, batch_size
        self.ordered = sorted(range(len(lengths)), key=lambda one: lengths[one])

    def __len__(self):
        return len(self.lengths) // self.batch_size

    def nearest(self, place):
        ordered = sorted(range(len(self.lengths)), key=lambda one: self.lengths[one])
        return ordered[place : place + self.batch_size]

    def __iter__(self):
        for _ in range(len(self)):
            yield self.nearest(random.randrange(len(self.lengths) - self.batch_size))


def pad(samples):
    tokens, labels = zip(*samples, strict=True)
    return nn.utils.rnn.pad_sequence(tokens, batch_first=True), torch.tensor(labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Sentences()
    batches = SimilarLengths(dataset.lengths, args.batch_size)
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=pad)
    model = nn.Sequential(nn.EmbeddingBag(WORDS, 64), nn.Linear(64, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        print(f"epoch {epoch}: {seen / (time.perf_counter() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
