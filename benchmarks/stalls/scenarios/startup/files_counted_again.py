"""Energies of molecules, small ones first. Bottleneck: each epoch opens all files to count their atoms.

Shows: between epochs, the training process reads small files for a second or more; batches come in time.
Fix: remember the counts.
"""

# expected: startup dataset read
# names: atoms_in | Molecules
# fix:
# -import argparse
# +import argparse
# +import functools
#
# -def atoms_in(path):
# +@functools.cache
# +def atoms_in(path):

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

MOLECULES, SEEN = 14_000, 3200


def write_molecules(folder):
    rng = np.random.default_rng(22)
    folder.mkdir()
    for number in range(MOLECULES):
        atoms = rng.integers(5, 30)
        places, elements = rng.standard_normal((atoms, 3)) * 3, rng.integers(1, 5, atoms)
        energy = -10.0 * atoms + rng.standard_normal()
        np.savez(folder / f"{number:05}.npz", places=places, elements=elements, energy=energy)


def atoms_in(path):
    with np.load(path) as molecule:
        return len(molecule["elements"])


class Molecules(Dataset):
    """Those of a folder that have few atoms, repeated until an epoch is full."""

    def __init__(self, folder, largest):
        paths = [path for path in sorted(folder.glob("*.npz")) if atoms_in(path) <= largest]
        self.paths = (paths * (SEEN // len(paths) + 1))[:SEEN]

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        with np.load(self.paths[index]) as molecule:
            places, elements = molecule["places"], molecule["elements"]
            energy = molecule["energy"] / len(elements)
        return torch.from_numpy(places).float(), torch.from_numpy(elements), float(energy)


def collate(samples):
    places, elements, energies = zip(*samples, strict=True)
    return (
        pad_sequence(places, batch_first=True),
        pad_sequence(elements, batch_first=True),
        torch.tensor(energies),
    )


class Interactions(nn.Module):
    """Messages between atoms, weighted by functions of their distance."""

    def __init__(self, width=64, layers=2):
        super().__init__()
        self.register_buffer("centers", torch.linspace(0, 10, 16))
        self.atoms = nn.Embedding(5, width, padding_idx=0)
        self.filters = nn.ModuleList(nn.Linear(16, width) for _ in range(layers))
        self.updates = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, places, elements):
        mask = (elements > 0).float()[..., None]
        distances = (places[:, :, None] - places[:, None]).square().sum(3).add(1e-6).sqrt()
        radial = torch.exp(-((distances[..., None] - self.centers) ** 2))
        atoms = self.atoms(elements)
        for weights, update in zip(self.filters, self.updates, strict=True):
            messages = (weights(radial) * (atoms * mask)[:, None]).sum(2)
            atoms = atoms + torch.tanh(update(messages))
        return ((self.head(atoms) * mask).sum(1) / mask.sum(1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    folder = Path(args.data) / "small-molecules"
    if not folder.exists():
        write_molecules(folder)
    model = Interactions()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        dataset = Molecules(folder, largest=16 + 2 * epoch)
        loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, collate_fn=collate)
        for places, elements, energies in loader:
            loss = nn.functional.huber_loss(model(places, elements), energies)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(energies)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.4f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
