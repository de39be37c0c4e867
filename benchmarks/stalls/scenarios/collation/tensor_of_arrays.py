"""Actions from skeletons. Bottleneck: collate makes a tensor of a list of arrays, number by number.

Shows: the worker is busy all the time, in torch.tensor; PyTorch warns that this is slow.
Fix: torch.from_numpy(np.stack(…)).
"""

# expected: collate
# names: collate_skeletons | torch.tensor
# fix:
# -        "joints": torch.tensor([sample["joints"] for sample in samples]),
# +        "joints": torch.from_numpy(np.stack([sample["joints"] for sample in samples])),

import argparse
import time
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
FRAMES, JOINTS, TAKES, ACTIONS = 60, 17, 6000, 8


class Takes(Dataset):
    """Sixty frames of the positions of a dancer's joints."""

    def __init__(self):
        rng = np.random.default_rng(4)
        self.motion = rng.standard_normal((30_000, JOINTS, 3), dtype=np.float32).cumsum(0)

    def __len__(self):
        return TAKES

    def __getitem__(self, index):
        start = index * 4
        joints = self.motion[start : start + FRAMES]
        return {"joints": joints - joints[:1, :1], "action": index % ACTIONS}


def collate_skeletons(samples):
    return {
        "joints": torch.tensor([sample["joints"] for sample in samples]),
        "action": torch.tensor([sample["action"] for sample in samples]),
    }


class Recognizer(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(JOINTS * 3, width, 5), nn.ReLU(), nn.Conv1d(width, width, 5), nn.ReLU()
        )
        self.head = nn.Linear(width, ACTIONS)

    def forward(self, joints):
        return self.head(self.body(joints.flatten(2).transpose(1, 2)).mean(2))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=24)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(
        Takes(), args.batch_size, shuffle=True, num_workers=1, collate_fn=collate_skeletons,
        persistent_workers=True,
    )  # fmt: skip
    model = Recognizer()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4)
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["joints"]), batch["action"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(batch["action"])
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
