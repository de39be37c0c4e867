"""Keyword spotting. Bottleneck: the spectrogram of each clip is computed again in each epoch.

Shows: workers compute all the time, in `spectrogram`.
Fix: spectrograms are computed once, before training.
"""

# expected: dataset transform
# fix:
# -        self.labels = torch.randint(0, 10, (CLIPS,), generator=generator)
# +        self.labels = torch.randint(0, 10, (CLIPS,), generator=generator)
# +        self.clips = [spectrogram(clip) for clip in self.clips]
#
# -        return spectrogram(self.clips[index]), self.labels[index]
# +        return self.clips[index], self.labels[index]

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLIPS, RATE, SECONDS = 300, 16_000, 4


def spectrogram(clip):
    window = torch.hann_window(1024)
    power = torch.stft(clip, 1024, hop_length=64, window=window, return_complex=True).abs().square()
    bands = power.unfold(0, 16, 8).mean(2)
    return (bands + 1e-6).log()


class Clips(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.clips = torch.randn(CLIPS, RATE * SECONDS, generator=generator)
        self.labels = torch.randint(0, 10, (CLIPS,), generator=generator)

    def __len__(self):
        return CLIPS

    def __getitem__(self, index):
        return spectrogram(self.clips[index]), self.labels[index]


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(63, 32, 9, stride=8)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.conv(x).relu().amax(2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: clips are noise")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=10)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Clips()
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = Spotter()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for clips, labels in loader:
            loss = nn.functional.cross_entropy(model(clips), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
