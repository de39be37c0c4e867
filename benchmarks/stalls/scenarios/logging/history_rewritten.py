"""Intents of questions to a bank. Bottleneck: the whole history of the losses is written after each step.

Shows: steps get longer from epoch to epoch, as the training process turns more and more numbers into JSON.
Fix: write it after each epoch, or append lines.
"""

# expected: logging
# names: write_history | json.dump
# fix:
# -            write_history(history, path)
# -        rate = seen / (time.perf_counter() - start)
# +        write_history(history, path)
# +        rate = seen / (time.perf_counter() - start)

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

QUESTIONS, TOKENS, WORDS, INTENTS = 8000, 24, 3000, 40


def make_questions():
    generator = torch.Generator().manual_seed(26)
    intents = torch.randint(INTENTS, (QUESTIONS,), generator=generator)
    words = torch.randint(1, WORDS, (QUESTIONS, TOKENS), generator=generator)
    words[:, :4] = intents[:, None] * 20 + torch.randint(1, 20, (QUESTIONS, 4), generator=generator)
    lengths = torch.randint(6, TOKENS + 1, (QUESTIONS, 1), generator=generator)
    return TensorDataset(words.masked_fill(torch.arange(TOKENS) >= lengths, 0), intents)


class Classifier(nn.Module):
    """Convolutions of three widths over the words, as in TextCNN."""

    def __init__(self, width=96):
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.views = nn.ModuleList(nn.Conv1d(width, width, size) for size in (2, 3, 4))
        self.head = nn.Linear(3 * width, INTENTS)

    def forward(self, words):
        vectors = self.words(words).transpose(1, 2)
        return self.head(torch.cat([view(vectors).relu().amax(2) for view in self.views], dim=1))


def norms(model):
    return {
        name: [parameter.detach().norm().item(), parameter.grad.norm().item()]
        for name, parameter in model.named_parameters()
    }


def write_history(history, path):
    with path.open("w", encoding="utf-8") as file:
        json.dump(history, file, indent=2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.set_num_threads(1)
    path = Path(args.data) / "intents-history.json"
    loader = DataLoader(make_questions(), args.batch_size, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, args.epochs) * len(loader))
    history = []
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for words, intents in loader:
            scores = model(words)
            loss = nn.functional.cross_entropy(scores, intents)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            seen += len(words)
            history.append({"epoch": epoch, "loss": loss.item(), "rate": schedule.get_last_lr()[0]})
            history[-1]["right"] = (scores.argmax(1) == intents).float().mean().item()
            history[-1]["norms"] = norms(model)
            write_history(history, path)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
