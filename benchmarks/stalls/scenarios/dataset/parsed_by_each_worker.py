"""Requests of a web server, streamed. Bottleneck: each worker parses all lines, then keeps every second.

Shows: both workers compute in `parse_request` all the time; a single one would be as fast.
Fix: skip the other worker's lines before they are parsed.
"""

# expected: dataset
# names: parse_request | __iter__ | info.id
# fix:
# -                features, status = parse_request(line)
# -                if info is None or number % info.num_workers == info.id:
# -                    yield features, status
# +                if info is None or number % info.num_workers == info.id:
# +                    yield parse_request(line)

import argparse
import random
import re
import time
import zlib
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

REQUESTS, BUCKETS, TOKENS = 70_000, 5_000, 64
LINE = re.compile(r'(\S+) - - \[([^\]]+)\] "(\w+) (\S+) HTTP/1.1" (\d{3}) (\d+)')


def write_log(path):
    rng = random.Random(9)
    words = ["".join(rng.choices("abcdefghiklmnoprstuvwz", k=rng.randint(3, 9))) for _ in range(800)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(REQUESTS):
            query = "&".join(f"{rng.choice(words)}={rng.choice(words)}" for _ in range(rng.randint(2, 8)))
            target = f"/{'/'.join(rng.choices(words, k=rng.randint(1, 5)))}?{query}"
            moment = f"26/Nov/2026:{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02} +0000"
            status = rng.choice((200, 200, 200, 404, 500))
            address = ".".join(str(rng.randrange(256)) for _ in range(4))
            file.write(f'{address} - - [{moment}] "GET {target} HTTP/1.1" {status} {rng.randrange(9999)}\n')


def bucket(text):
    return zlib.crc32(text.encode()) % BUCKETS + 1


def parse_request(line):
    address, moment, method, target, status, _ = LINE.match(line).groups()
    url = urlsplit(target)
    tokens = [f"method {method}", f"network {address.rpartition('.')[0]}", f"hour {moment[12:14]}"]
    for part in url.path.split("/"):
        tokens += [f"path {part[start : start + 3]}" for start in range(len(part) - 2)]
    for name, value in parse_qsl(url.query):
        tokens += [f"{name} {value[start : start + 3]}" for start in range(len(value) - 2)]
    features = [bucket(token) for token in tokens[:TOKENS]]
    return torch.tensor(features + [0] * (TOKENS - len(features))), int(status != "200")


class Requests(IterableDataset):
    def __init__(self, path):
        self.path = path

    def __iter__(self):
        info = get_worker_info()
        with open(self.path, encoding="utf-8") as file:
            for number, line in enumerate(file):
                features, status = parse_request(line)
                if info is None or number % info.num_workers == info.id:
                    yield features, status


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=128)
    args = parser.parse_args()

    torch.set_num_threads(1)
    path = Path(args.data) / "access.log"
    if not path.exists():
        write_log(path)
    loader = DataLoader(Requests(path), batch_size=args.batch_size, num_workers=2)
    model = nn.Sequential(nn.EmbeddingBag(BUCKETS + 1, 32, padding_idx=0), nn.Tanh(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    for epoch in range(args.epochs):
        start, seen, wrong = time.perf_counter(), 0, 0
        for features, failed in loader:
            scores = model(features)
            loss = nn.functional.cross_entropy(scores, failed)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(failed)
            wrong += (scores.argmax(1) != failed).sum().item()
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: {wrong / seen:.1%} wrong, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
