"""A recurrent classifier of texts. Illness: a thread beside the step makes its batches, in pure Python.

A loader that fills a queue from a thread is what people write to "prefetch without worker processes". It
helps where reading waits; where it computes in Python, thread and step hold the GIL in turns.
Shows: the loader alone and the step alone are each fast enough, both together take as long as one after the
other; the process keeps little more than one core busy.
Heals: worker processes (num_workers=2) in place of the thread.
"""

# expected: gil

import argparse
import queue
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH = 20_000, 96


class BackgroundLoader(DataLoader):
    """Makes batches in a thread, so that the next ones are ready when the step asks for them."""

    def __iter__(self):
        batches, filled = super().__iter__(), queue.Queue(maxsize=4)

        def fill():
            for batch in batches:
                filled.put(batch)
            filled.put(None)

        threading.Thread(target=fill, daemon=True).start()
        while (batch := filled.get()) is not None:
            yield batch


class Reviews(Dataset):
    """Lines of "label<TAB>text", as hashed n-grams of letters."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.lines = file.read().splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        label, text = self.lines[index].split("\t")
        counts = {}
        for size in (3, 4, 5):
            for start in range(len(text) - size + 1):
                gram = text[start : start + size]
                counts[gram] = counts.get(gram, 0) + 1
        common = sorted(counts, key=lambda gram: (-counts[gram], gram))[:LENGTH]
        tokens = [sum(ord(letter) * 31**i for i, letter in enumerate(gram)) % VOCABULARY for gram in common]
        return torch.tensor(tokens), int(label)


class Classifier(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, sparse=True)
        self.cell = nn.GRUCell(width, width)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        state = None
        for step in self.embedding(tokens).unbind(1):
            state = self.cell(step, state)
        return self.head(state)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()

    torch.set_num_threads(1)
    device = torch.device(args.device)
    loader = BackgroundLoader(Reviews(args.data), args.batch_size, shuffle=True)
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
