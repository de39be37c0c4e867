"""A small transformer on characters. Healthy: a worker cuts windows out of one tensor, the step is the limit.

Shows: steps don't wait.
Fix: nothing in the loader.
"""

# expected: healthy
# data: reviews.tsv

import argparse
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CONTEXT = 64


class Characters(Dataset):
    def __init__(self, path):
        text = Path(path).read_bytes()[:2_000_000]
        self.tokens = torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def __len__(self):
        return (len(self.tokens) - 1) // CONTEXT

    def __getitem__(self, index):
        chunk = self.tokens[index * CONTEXT : (index + 1) * CONTEXT + 1].long()
        return chunk[:-1], chunk[1:]


class LanguageModel(nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.positions = nn.Embedding(CONTEXT, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        x = self.tokens(tokens) + self.positions(torch.arange(CONTEXT))
        return self.head(self.layers(x, mask=mask, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    dataset = Characters(args.data)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=1, drop_last=True)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for inputs, targets in loader:
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        rate = len(dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
