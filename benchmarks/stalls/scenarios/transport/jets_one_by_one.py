"""Jets of particles in a detector. Bottleneck: 96 small tensors per batch are sent one by one.

Shows: the training process asks workers for a file descriptor of each tensor; samples cost next to nothing.
Fix: join the tensors in the collate function, so that few of them are sent.
"""

# expected: transfer
# fix:
# -        collate_fn=list,
# +        collate_fn=merge,
#
# -            batch = merge(jets)
# +            batch = jets

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

JETS, TRACK_WIDTH, TOWER_WIDTH = 4800, 7, 4


def smear(values, share=0.02):
    """As a detector of limited resolution would have measured them."""
    return values * (1 + share * torch.randn_like(values))


class Jets(Dataset):
    """Tracks of charged particles, towers of the calorimeter, and what the jet began with."""

    def __init__(self, size=JETS // 4):
        generator = torch.Generator().manual_seed(67)
        self.tops = torch.randint(2, (size,), generator=generator)
        self.tracks, self.towers, self.vertices = [], [], []
        for top in self.tops.tolist():
            tracks, towers, vertices = torch.randint(8, 30, (3,), generator=generator).tolist()
            self.tracks.append(torch.randn(tracks + 6 * top, TRACK_WIDTH, generator=generator))
            self.towers.append(torch.randn(towers, TOWER_WIDTH, generator=generator) + 0.2 * top)
            self.vertices.append(torch.randn(vertices // 8, 3, generator=generator))

    def __len__(self):
        return JETS

    def __getitem__(self, index):
        index %= len(self.tops)
        towers = smear(self.towers[index], 0.1)
        return {
            "tracks": smear(self.tracks[index]),
            "towers": towers,
            "vertices": smear(self.vertices[index]),
            "total": towers.abs().sum(0),
            "top": int(self.tops[index]),
        }


def merge(jets):
    """Joins jets: for each kind of part, the parts of all jets and the number of the jet of each."""
    batch = {
        "total": torch.stack([jet["total"] for jet in jets]),
        "top": torch.tensor([jet["top"] for jet in jets]),
    }
    for key in ("tracks", "towers", "vertices"):
        parts = [jet[key] for jet in jets]
        counts = torch.tensor([len(part) for part in parts])
        batch[key] = torch.cat(parts), torch.arange(len(jets)).repeat_interleave(counts)
    return batch


class DeepSet(nn.Module):
    """Encodes each part by itself, and adds up those of a jet."""

    def __init__(self, width, hidden=160):
        super().__init__()
        self.hidden = hidden
        self.net = nn.Sequential(
            nn.Linear(width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
        )

    def forward(self, parts, owners, jets):
        return torch.zeros(jets, self.hidden).index_add(0, owners, self.net(parts))


class TopTagger(nn.Module):
    def __init__(self, hidden=160):
        super().__init__()
        self.sets = nn.ModuleDict(
            {"tracks": DeepSet(TRACK_WIDTH), "towers": DeepSet(TOWER_WIDTH), "vertices": DeepSet(3)}
        )
        self.head = nn.Sequential(
            nn.Linear(3 * hidden + TOWER_WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    def forward(self, batch):
        sums = [encode(*batch[key], len(batch["top"])) for key, encode in self.sets.items()]
        return self.head(torch.cat([*sums, batch["total"]], dim=1)).squeeze(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: jets are simulated")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(67)
    loader = DataLoader(
        Jets(),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=2,
        collate_fn=list,
        persistent_workers=True,
    )
    model = TopTagger()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        start, seen, right = time.perf_counter(), 0, 0
        for jets in loader:
            batch = merge(jets)
            scores = model(batch)
            loss = nn.functional.binary_cross_entropy_with_logits(scores, batch["top"].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += ((scores > 0) == batch["top"]).sum().item()
            seen += len(scores)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: {right / seen:.1%} tagged right, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
