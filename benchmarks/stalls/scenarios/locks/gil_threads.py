"""An echo state network that classifies texts. Bottleneck: a thread makes the batches, in pure Python.

A loader that fills a queue from a thread is what people write to "prefetch without worker processes". It
helps where reading waits; where it computes in Python, thread and step hold the GIL in turns.
Shows: the loader alone and the step alone are each fast enough, both together take as long as one after the
other; the process keeps little more than one core busy.
Fix: worker processes (num_workers=2) in place of the thread.
"""

# expected: gil
# data: reviews.tsv
# fix:
# -    loader = BackgroundLoader(Reviews(args.data), args.batch_size, shuffle=True)
# +    loader = DataLoader(
# +        Reviews(args.data), args.batch_size, shuffle=True, num_workers=2, persistent_workers=True
# +    )

import argparse
import queue
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH = 20_000, 128


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
    """Lines of "label<TAB>text", as the hashes of its commonest trigrams."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            self.lines = file.read().splitlines()

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        label, text = self.lines[index].split("\t")
        counts = {}
        for start in range(len(text) - 2):
            gram = text[start : start + 3]
            counts[gram] = counts.get(gram, 0) + 1
        common = sorted(counts, key=lambda gram: (-counts[gram], gram))[:LENGTH]
        tokens = [sum(ord(letter) * 31**i for i, letter in enumerate(gram)) % VOCABULARY for gram in common]
        return torch.tensor(tokens), int(label)


class EchoState(nn.Module):
    """A reservoir with fixed random weights, of which only the readout is trained."""

    def __init__(self, width=256, leak=0.3):
        super().__init__()
        self.leak = leak
        self.register_buffer("embedding", torch.randn(VOCABULARY, width))
        self.register_buffer("weights", torch.randn(width, width) * 0.9 / width**0.5)
        self.readout = nn.Linear(width, 2)

    def forward(self, tokens):
        state = torch.zeros(len(tokens), self.weights.shape[0], device=tokens.device)
        with torch.no_grad():
            for inputs in self.embedding[tokens].unbind(1):
                state = (1 - self.leak) * state + self.leak * torch.tanh(inputs + state @ self.weights)
        return self.readout(state)


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
    model = EchoState().to(device)
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
