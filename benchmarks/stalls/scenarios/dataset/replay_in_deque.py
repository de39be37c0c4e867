"""A shop learns how much to order, by Q-learning. Bottleneck: it draws moves from a deque of 1.5 millions.

An element in the middle of a deque is found by walking through a list of blocks from its nearer end.
Shows: the training process computes in random.sample, below the dataset's __iter__; there are no workers.
Fix: a list that is overwritten in turn.
"""

# expected: dataset
# names: random.sample | rng.sample | deque | __iter__ | draw
# fix:
# -        self.moves = deque(maxlen=capacity)
# +        self.moves, self.capacity, self.oldest = [], capacity, 0
#
# -        self.moves.append(move)
# +        if len(self.moves) < self.capacity:
# +            self.moves.append(move)
# +        else:
# +            self.moves[self.oldest] = move
# +            self.oldest = (self.oldest + 1) % self.capacity

import argparse
import copy
import random
import time
from collections import deque

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

ORDERS, SHELF, HISTORY = 8, 40, 4


class Shop:
    """Sells one product. Its state: the weekday, the stock, and what was asked for on the last days."""

    def __init__(self, rng):
        self.rng = rng
        self.state = (0, SHELF // 2, *[0] * HISTORY)

    def order(self, amount):
        weekday, stock, *asked = self.state
        wanted = int(self.rng.random() * (6 + weekday))
        stock = min(stock + amount, SHELF)
        sold = min(stock, wanted)
        before = self.state
        self.state = ((weekday + 1) % 7, stock - sold, wanted, *asked[:-1])
        return before, amount, 2.0 * sold - amount - 0.1 * stock, self.state


class ReplayBuffer:
    def __init__(self, capacity, rng):
        self.rng = rng
        self.moves = deque(maxlen=capacity)

    def add(self, move):
        self.moves.append(move)

    def draw(self, size):
        before, orders, rewards, after = zip(*self.rng.sample(self.moves, size), strict=True)
        return (
            torch.tensor(before, dtype=torch.float32),
            torch.tensor(orders),
            torch.tensor(rewards),
            torch.tensor(after, dtype=torch.float32),
        )


class Replays(IterableDataset):
    def __init__(self, buffer, batch_size, steps):
        self.buffer, self.batch_size, self.steps = buffer, batch_size, steps

    def __iter__(self):
        for _ in range(self.steps):
            yield self.buffer.draw(self.batch_size)


class Agent:
    def __init__(self, shop, rng, width=320):
        self.shop, self.rng = shop, rng
        self.net = nn.Sequential(
            nn.Linear(HISTORY + 2, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, ORDERS),
        )
        self.target = copy.deepcopy(self.net).requires_grad_(False)

    @torch.no_grad()
    def play(self, epsilon=0.1):
        amount = self.rng.randrange(ORDERS)
        if self.rng.random() > epsilon:
            amount = int(self.net(torch.tensor(self.shop.state, dtype=torch.float32)).argmax())
        return self.shop.order(amount)

    def loss(self, before, orders, rewards, after, discount=0.97):
        value = self.net(before).gather(1, orders[:, None]).squeeze(1)
        best = self.net(after).argmax(1, keepdim=True)  # double Q-learning
        return nn.functional.smooth_l1_loss(
            value, rewards + discount * self.target(after).gather(1, best).squeeze(1)
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: the shop is simulated")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=240, help="per epoch")
    parser.add_argument("--buffer", type=int, default=1_500_000)
    args = parser.parse_args()
    if args.epochs == 0:
        return

    torch.set_num_threads(1)
    torch.manual_seed(64)
    rng = random.Random(64)
    shop = Shop(rng)
    agent = Agent(shop, rng)
    buffer = ReplayBuffer(args.buffer, rng)
    for _ in range(args.buffer):  # moves at random, before anything is learned
        buffer.add(shop.order(int(rng.random() * ORDERS)))
    loader = DataLoader(Replays(buffer, args.batch_size, args.steps), batch_size=None)
    optimizer = torch.optim.Adam(agent.net.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        earned = 0.0
        for step, batch in enumerate(loader):
            loss = agent.loss(*batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.net.parameters(), 10.0)
            optimizer.step()
            if step % 4 == 0:
                move = agent.play()
                earned += move[2]
                buffer.add(move)
        agent.target.load_state_dict(agent.net.state_dict())
        rate = args.steps * args.batch_size / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, earned {earned:.1f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
