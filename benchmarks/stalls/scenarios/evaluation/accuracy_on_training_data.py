"""Bird songs with Accelerate. Bottleneck: after each epoch, all clips are read again for the accuracy.

Shows: training steps hardly wait; as much time goes into `accuracy`, whose loader has no workers.
Fix: count right answers during the training steps, or on a part of the clips.
"""

# expected: validation
# names: accuracy
# needs: accelerate
# fix:
# -        score = accuracy(model, scoring)
# +        score = right / seen

import argparse
import time

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

CLIPS, RATE, SECONDS, SPECIES = 1600, 8_000, 2, 12


class Songs(Dataset):
    """Clips of two seconds, as log mel-like bands."""

    def __init__(self):
        generator = torch.Generator().manual_seed(7)
        self.clips = torch.randn(CLIPS // 8, RATE * SECONDS, generator=generator)
        self.window = torch.hann_window(512)

    def __len__(self):
        return CLIPS

    def __getitem__(self, index):
        clip = self.clips[index // 8].roll(index % 8 * 500)
        power = torch.stft(clip, 512, hop_length=128, window=self.window, return_complex=True).abs().square()
        return (power[:256].unflatten(0, (64, 4)).mean(1) + 1e-6).log(), index % SPECIES


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(bands).argmax(1) == species).sum().item() for bands, species in loader)
    model.train()
    return right / CLIPS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=True)
    torch.set_num_threads(1)
    songs = Songs()
    loader = DataLoader(songs, args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    scoring = DataLoader(songs, args.batch_size)
    model = nn.Sequential(
        nn.Conv1d(64, 96, 5), nn.ReLU(), nn.Conv1d(96, 96, 5, stride=2), nn.ReLU(),
        nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(96, SPECIES),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters())
    model, optimizer, loader, scoring = accelerator.prepare(model, optimizer, loader, scoring)
    for epoch in range(args.epochs):
        start, seen, right = time.perf_counter(), 0, 0
        for bands, species in loader:
            scores = model(bands)
            loss = nn.functional.cross_entropy(scores, species)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += len(species)
            right += (scores.argmax(1) == species).sum().item()
        score = accuracy(model, scoring)
        rate = seen / (time.perf_counter() - start)
        accelerator.print(f"epoch {epoch}: accuracy {score:.2f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
