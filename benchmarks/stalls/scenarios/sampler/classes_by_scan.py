"""Embeddings of faces, trained on triplets. Bottleneck: the sampler looks through all labels for each person.

Shows: workers are idle; the training process is in `nonzero` between the steps.
Fix: sort the images by person once.
"""

# expected: sampler
# names: PeopleThenFaces | nonzero | self.people ==
# fix:
# -        self.count = people.max().item() + 1
# +        self.count = people.max().item() + 1
# +        self.faces = people.argsort().split(people.bincount(minlength=self.count).tolist())
#
# -                faces = (self.people == person).nonzero().flatten()
# +                faces = self.faces[person]

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, Sampler

FACES, PEOPLE, WIDTH, BATCHES = 1_200_000, 2_000, 96, 360


class Faces(Dataset):
    """Descriptors of faces, which vary around those of the person."""

    def __init__(self):
        generator = torch.Generator().manual_seed(17)
        self.people = torch.randint(PEOPLE, (FACES,), generator=generator)
        self.mean = torch.randn(PEOPLE, WIDTH, generator=generator)

    def __len__(self):
        return FACES

    def __getitem__(self, index):
        person = self.people[index]
        return self.mean[person] + torch.randn(WIDTH), person


class PeopleThenFaces(Sampler):
    """Batches of some people, with some faces of each."""

    def __init__(self, people, per_batch, faces_each, batches):
        self.people, self.per_batch, self.faces_each, self.batches = people, per_batch, faces_each, batches
        self.count = people.max().item() + 1

    def __len__(self):
        return self.batches

    def __iter__(self):
        for _ in range(self.batches):
            batch = []
            for person in torch.randperm(self.count)[: self.per_batch].tolist():
                faces = (self.people == person).nonzero().flatten()
                batch += faces[torch.randint(len(faces), (self.faces_each,))].tolist()
            yield batch


def hardest_triplets(embeddings, people, margin=0.2):
    distances = torch.cdist(embeddings, embeddings)
    same = people[:, None] == people
    farthest = distances.masked_fill(~same, 0).amax(1)
    nearest = distances.masked_fill(same, float("inf")).amin(1)
    return (farthest - nearest + margin).relu().mean()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Faces()
    sampler = PeopleThenFaces(dataset.people, args.batch_size // 4, 4, BATCHES)
    loader = DataLoader(dataset, batch_sampler=sampler, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Linear(WIDTH, 512), nn.LayerNorm(512), nn.GELU(), nn.Linear(512, 512), nn.GELU(),
        nn.Linear(512, 64),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for faces, people in loader:
            loss = hardest_triplets(nn.functional.normalize(model(faces)), people)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(people)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
