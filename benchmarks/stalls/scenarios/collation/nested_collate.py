"""A recommender on nested features. Bottleneck: 160 tiny tensors per sample are stacked, then sent.

Shows: workers collate and send; making the samples costs next to nothing.
Fix: one tensor per sample.
"""

# expected: collate transfer
# fix:
# -    return {
# -        group: {f"field_{field}": values[row, field].clone() for field in range(FIELDS)}
# -        for row, group in enumerate(groups)
# -    }
# +    return {"all": dict.fromkeys(groups[:1], values.flatten())}
#
# -        return self.net(torch.stack(columns, dim=1))
# +        return self.net(columns[0])

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

USERS, FIELDS = 4000, 40


def make_user(number):
    """{"history": {"clicks": …}, "profile": {…}}: four groups of features, each a tensor of its own."""
    generator = torch.Generator().manual_seed(number)
    values = torch.randn(4, FIELDS, generator=generator)
    groups = ("history", "profile", "context", "device")
    return {
        group: {f"field_{field}": values[row, field].clone() for field in range(FIELDS)}
        for row, group in enumerate(groups)
    }


class Users(Dataset):
    def __init__(self):
        self.users = [make_user(number) for number in range(USERS)]

    def __len__(self):
        return USERS

    def __getitem__(self, index):
        return self.users[index], index % 2


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4 * FIELDS, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, features):
        columns = [column for group in features.values() for column in group.values()]
        return self.net(torch.stack(columns, dim=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: users are made up")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dataset = Users()
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = Recommender()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for features, labels in loader:
            loss = nn.functional.cross_entropy(model(features), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
