"""Small CNN on photographs kept as PNG. Bottleneck: inflating them, which no crop makes cheaper.

Shows: workers spend their time in Pillow's PNG decoder.
Fix: the same photographs as JPEG.
"""

# expected: decode
# data: png
# fixed data: pictures

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets
from torchvision.transforms import v2


class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 5, stride=4)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = nn.functional.relu(self.conv1(x))
        x = nn.functional.relu(self.conv2(x))
        return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


def train(model, loader, optimizer, epoch):
    model.train()
    start, seen = time.perf_counter(), 0
    for data, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.nll_loss(nn.functional.log_softmax(model(data), dim=1), target)
        loss.backward()
        optimizer.step()
        seen += len(data)
    rate = seen / (time.perf_counter() - start)
    print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    torch.set_num_threads(1)
    transform = v2.Compose(
        [v2.ToImage(), v2.RandomCrop(96, pad_if_needed=True), v2.ToDtype(torch.float32, scale=True)]
    )
    dataset = datasets.ImageFolder(args.data, transform)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = Net(len(dataset.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(args.epochs):
        train(model, loader, optimizer, epoch)


if __name__ == "__main__":
    main()
