"""A recurrent net over sequences of 20 to 200 steps, padded by batch. Healthy: the step is the limit.

Shows: steps differ by a factor of several, but none waits.
Fix: nothing in the loader.
"""

# expected: healthy

import argparse
import time

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils.data import DataLoader, Dataset


class Sequences(Dataset):
    def __init__(self, count=3000):
        generator = torch.Generator().manual_seed(1)
        lengths = torch.randint(20, 200, (count,), generator=generator).tolist()
        self.sequences = [torch.randn(length, 24, generator=generator) for length in lengths]

    def __len__(self):
        return len(self.sequences)

    def __getitem__(self, index):
        return self.sequences[index], index % 7


def pad(samples):
    sequences, labels = zip(*samples, strict=True)
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    return pad_sequence(sequences, batch_first=True), lengths, torch.tensor(labels)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.recurrent = nn.GRU(24, 192, num_layers=2, batch_first=True)
        self.head = nn.Linear(192, 7)

    def forward(self, sequences, lengths):
        packed = pack_padded_sequence(sequences, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.recurrent(packed)[1][-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: sequences are made up")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Sequences()
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=1, collate_fn=pad)
    model = Tagger()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for sequences, lengths, labels in loader:
            loss = nn.functional.cross_entropy(model(sequences, lengths), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
