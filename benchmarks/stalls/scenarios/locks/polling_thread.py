"""Prices of flats, out of a table. Bottleneck: a thread looks for new losses in a loop, and keeps the GIL.

Shows: the loader is far ahead; each operation of the step waits until the thread hands the GIL over.
Fix: let the thread sleep, or wait in queue.get().
"""

# expected: gil
# names: watch_losses | reports
# fix:
# -            continue
# +            time.sleep(0.1)
# +            continue

import argparse
import collections
import threading
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

FLATS, COLUMNS = 19_200, 96


class Flats(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(20)
        self.columns = torch.randn(FLATS, COLUMNS, generator=generator)
        self.prices = self.columns[:, :8].sum(1) + torch.randn(FLATS, generator=generator)

    def __len__(self):
        return FLATS

    def __getitem__(self, index):
        return self.columns[index], self.prices[index]


def watch_losses(reports, state):
    """Smooths the losses for the display, and remembers the best."""
    while not state["finished"]:
        if not reports:
            continue
        loss = reports.popleft()
        state["smooth"] = loss if state["smooth"] is None else 0.98 * state["smooth"] + 0.02 * loss
        state["best"] = min(state["best"], loss)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256)
    args = parser.parse_args()

    torch.set_num_threads(1)
    loader = DataLoader(Flats(), args.batch_size, shuffle=True, num_workers=1, persistent_workers=True)
    model = nn.Sequential(
        nn.Linear(COLUMNS, 1024), nn.ReLU(), nn.Linear(1024, 768), nn.ReLU(), nn.Linear(768, 1)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    reports, state = collections.deque(), {"smooth": None, "best": float("inf"), "finished": False}
    watcher = threading.Thread(target=watch_losses, args=(reports, state), daemon=True)
    watcher.start()
    for epoch in range(args.epochs):
        start, seen = time.perf_counter(), 0
        for columns, prices in loader:
            loss = nn.functional.mse_loss(model(columns).squeeze(1), prices)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            reports.append(loss.item())
            seen += len(prices)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: best loss {state['best']:.3f}, {rate:.1f} samples/s", flush=True)
    state["finished"] = True


if __name__ == "__main__":
    main()
