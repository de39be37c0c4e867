"""Token batches with Accelerate. Bottleneck: buckets are filled again, in Python, for each batch.

Shows: the training thread appends numbers to lists; one worker waits for indices.
Fix: fill the buckets once.
"""

# expected: sampler
# names: TokenBuckets | make_buckets
# advises: once
# needs: accelerate
# fix:
# -            buckets = self.make_buckets()
# +            buckets = self.buckets

import argparse
import random
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader

VOCABULARY = 3000


class Documents:
    def __init__(self, count):
        rng = random.Random(1)
        self.token_counts = [int(rng.gauss(40, 10)) % 80 + 1 for _ in range(count)]

    def __len__(self):
        return len(self.token_counts)

    def __getitem__(self, number):
        return {"input_ids": torch.full((80,), number % VOCABULARY), "label": number % 4}


class TokenBuckets:
    def __init__(self, token_counts, batch_size):
        self.token_counts, self.batch_size, self.drop_last = token_counts, batch_size, True
        self.buckets = self.make_buckets()

    def __len__(self):
        return len(self.token_counts) // self.batch_size

    def make_buckets(self):
        buckets = {}
        for number, count in enumerate(self.token_counts):
            buckets.setdefault(count // 10, []).append(number)
        return [bucket for bucket in buckets.values() if len(bucket) >= self.batch_size]

    def __iter__(self):
        for _ in range(len(self)):
            buckets = self.make_buckets()
            yield random.sample(random.choice(buckets), self.batch_size)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    documents = Documents(100_000)
    batches = TokenBuckets(documents.token_counts, args.batch_size)
    loader = DataLoader(documents, batch_sampler=batches, num_workers=1)
    model = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Flatten(), nn.Linear(80 * 32, 4))
    optimizer = torch.optim.Adam(model.parameters())
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["input_ids"]), batch["label"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += len(batch["label"])
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
