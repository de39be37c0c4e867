"""Sentiment of short messages. The loader is healthy; all are padded to 256 tokens, which slows each step.

Shows: the loader is far ahead; five of six tokens that the transformer computes are padding.
Healthy: a remedy for the loader would gain nothing.
"""

# expected: healthy step

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

MESSAGES, WORDS, LONGEST = 640, 8000, 256


class Messages(Dataset):
    """Tokens of messages; all lie behind each other in one array."""

    def __init__(self):
        rng = np.random.default_rng(28)
        self.ends = rng.integers(12, 70, MESSAGES).cumsum()
        self.tokens = rng.integers(2, WORDS, self.ends[-1])

    def __len__(self):
        return MESSAGES

    def __getitem__(self, index):
        start = self.ends[index - 1] if index else 0
        tokens = torch.from_numpy(self.tokens[start : self.ends[index]])
        return {"tokens": tokens, "label": (tokens.sum() % 2).item()}


def pad(samples):
    tokens = torch.zeros(len(samples), LONGEST, dtype=torch.long)
    for row, sample in zip(tokens, samples, strict=True):
        row[: len(sample["tokens"])] = sample["tokens"]
    return tokens, torch.tensor([sample["label"] for sample in samples])


class Sentiment(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.places = nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        padding = tokens == 0
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        x = self.encoder(x, src_key_padding_mask=padding).masked_fill(padding[..., None], 0)
        return self.head(x.sum(1) / (~padding).sum(1, keepdim=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(
        Messages(), args.batch_size, shuffle=True, num_workers=2, collate_fn=pad, persistent_workers=True
    )
    model = Sentiment()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for tokens, labels in loader:
            loss = nn.functional.cross_entropy(model(tokens), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(labels)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
