"""Bag of embeddings on reviews. Bottleneck: a tokenizer in pure Python, again in each epoch.

Shows: both workers compute all the time, in `merge`; the step waits for them.
Fix: tokens are kept once they are made, before training.
"""

# expected: dataset
# data: reviews.tsv
# fix:
# -        self.rows = [(text, int(label)) for label, text in rows]
# +        self.rows = [(tokenize(text), int(label)) for label, text in rows[:1000]]
#
# -        return tokenize(text), label
# +        return text, label

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LENGTH = 256
MERGES = [first + second for second in "aeiou" for first in "bdfgklmnprst"]
VOCABULARY = {
    piece: number for number, piece in enumerate(["<pad>", " ", *"abcdefghijklmnopqrstuvwxyz", *MERGES])
}


def merge(word):
    """Letters, joined pair by pair in the order of MERGES."""
    pieces = list(word)
    for pair in MERGES:
        position = 0
        while position < len(pieces) - 1:
            if pieces[position] + pieces[position + 1] == pair:
                pieces[position : position + 2] = [pair]
            position += 1
    return pieces


def tokenize(text):
    tokens = []
    for word in text.split()[:40]:
        tokens += [VOCABULARY[piece] for piece in merge(word)]
    tokens = tokens[:LENGTH]
    return torch.tensor(tokens + [0] * (LENGTH - len(tokens)))


class Reviews(Dataset):
    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        self.rows = [(text, int(label)) for label, text in rows]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        text, label = self.rows[index]
        return tokenize(text), label


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(len(VOCABULARY), 128, padding_idx=0)
        self.head = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 2))

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Reviews(args.data)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)
