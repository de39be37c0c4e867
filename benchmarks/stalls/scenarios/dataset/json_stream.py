"""Streams events out of a file of JSON lines. Bottleneck: one worker parses and converts value by value.

Shows: the worker computes all the time, in the dataset's __iter__.
Fix: the events as one array, made beforehand.
"""

# expected: dataset
# data: events.jsonl
# fix:
# -    dataset = Events(args.data)
# +    dataset = ParsedEvents(args.data)

import argparse
import json
import math
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class Events(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        with open(self.path, encoding="utf-8") as file:
            for line in file:
                event = json.loads(line)
                values = [math.log1p(float(reading["value"])) for reading in event["readings"]]
                yield torch.tensor(values), event["label"]


class ParsedEvents(IterableDataset):
    """All events at once, as arrays."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            events = [json.loads(line) for line in file]
        values = [[float(reading["value"]) for reading in event["readings"]] for event in events]
        self.values, self.labels = torch.tensor(values).log1p(), [event["label"] for event in events]

    def __iter__(self):
        yield from zip(self.values, self.labels, strict=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Events(args.data)
    loader = DataLoader(dataset, args.batch_size, num_workers=1, persistent_workers=True, drop_last=True)
    model = nn.Sequential(nn.Linear(200, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for values, labels in loader:
            loss = nn.functional.cross_entropy(model(values), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
