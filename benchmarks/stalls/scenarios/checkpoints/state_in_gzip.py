"""Songs that go together in playlists. Bottleneck: each epoch's checkpoint is compressed by gzip.

Shows: steps are even, the loader is ahead; between epochs, the training process computes in zlib for seconds,
which makes the file a few percent smaller.
Fix: write it as it is.
"""

# expected: checkpoint
# names: gzip | torch.save | Checkpointer | save(
# fix:
# -        with gzip.open(self.path, "wb") as file:
# +        with open(self.path, "wb") as file:

import argparse
import gzip
import os
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SONGS, PLAYLISTS, LENGTH, AROUND, NEGATIVES, STEPS = 50_000, 2000, 40, 4, 20, 240


class Playlists(Dataset):
    """A song, those around it in a playlist, and some by chance."""

    def __init__(self, samples):
        rng = np.random.default_rng(71)
        genres = rng.integers(0, 50, PLAYLISTS)
        self.lists = genres[:, None] * (SONGS // 50) + rng.integers(0, SONGS // 50, (PLAYLISTS, LENGTH))
        self.samples = samples

    def __len__(self):
        return self.samples

    def __getitem__(self, _index):
        songs = self.lists[np.random.randint(PLAYLISTS)]
        place = np.random.randint(AROUND, LENGTH - AROUND)
        around = np.concatenate([songs[place - AROUND : place], songs[place + 1 : place + 1 + AROUND]])
        return songs[place], around, np.random.randint(0, SONGS, NEGATIVES)


class SkipGram(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.songs = nn.Embedding(SONGS, width, sparse=True)
        self.contexts = nn.Embedding(SONGS, width, sparse=True)
        nn.init.normal_(self.songs.weight, std=0.1)
        nn.init.normal_(self.contexts.weight, std=0.1)

    def forward(self, songs, around, others):
        vectors = self.songs(songs)[:, :, None]
        near = nn.functional.logsigmoid((self.contexts(around) @ vectors).squeeze(2))
        far = nn.functional.logsigmoid(-(self.contexts(others) @ vectors).squeeze(2))
        return -near.mean() - far.mean()


class Checkpointer:
    """Keeps the last epoch, so that a job that is preempted can resume."""

    def __init__(self, path, model, optimizer):
        self.path = path
        self.parts = {"model": model, "optimizer": optimizer}

    def save(self, epoch):
        state = {name: part.state_dict() for name, part in self.parts.items()}
        with gzip.open(self.path, "wb") as file:
            torch.save({"epoch": epoch, **state}, file)

    def size(self):
        return os.path.getsize(self.path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(71)
    folder = Path(args.data) / "songs-skipgram"
    folder.mkdir(parents=True, exist_ok=True)
    loader = DataLoader(
        Playlists(STEPS * args.batch_size), args.batch_size, num_workers=1, persistent_workers=True
    )
    model = SkipGram()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    checkpointer = Checkpointer(folder / "state.pt", model, optimizer)
    for epoch in range(args.epochs):
        start, running = time.perf_counter(), None
        for songs, around, others in loader:
            loss = model(songs, around, others)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        checkpointer.save(epoch)
        rate = STEPS * args.batch_size / (time.perf_counter() - start)
        megabytes = checkpointer.size() / 1e6
        print(
            f"epoch {epoch}: loss {running:.3f}, saved {megabytes:.0f} MB, {rate:.1f} samples/s", flush=True
        )


if __name__ == "__main__":
    main()
