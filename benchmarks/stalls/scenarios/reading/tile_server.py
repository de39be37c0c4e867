"""Map tiles from a server with a protocol of its own. Bottleneck: 15 ms per tile and connection.

The script starts that server.
Shows: three workers are blocked in recv(); all cores are idle.
Fix: many more workers.
"""

# expected: read
# advises: workers
# fix:
# -    loader = DataLoader(Atlas(ours.recv()), args.batch_size, shuffle=True, num_workers=3)
# +    loader = DataLoader(
# +        Atlas(ours.recv()), args.batch_size, shuffle=True, num_workers=16, persistent_workers=True
# +    )

import argparse
import multiprocessing
import socket
import socketserver
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE = 32


class Tiles(socketserver.StreamRequestHandler):
    def handle(self):
        number = int(self.rfile.readline())
        time.sleep(0.015)  # stands for the disk of the server
        self.wfile.write(bytes((number + i) % 256 for i in range(SIDE)) * SIDE)


class Server(socketserver.ThreadingTCPServer):
    daemon_threads, request_queue_size = True, 128


def run_server(pipe):
    with Server(("127.0.0.1", 0), Tiles) as server:
        pipe.send(server.server_address)
        server.serve_forever()


def fetch_tile(address, number):
    data = bytearray()
    with socket.create_connection(address) as connection:
        connection.sendall(f"{number}\n".encode())
        while part := connection.recv(65536):
            data += part
    return data


class Atlas(Dataset):
    def __init__(self, address):
        self.address = address

    def __len__(self):
        return 6000

    def __getitem__(self, number):
        tile = torch.frombuffer(fetch_tile(self.address, number), dtype=torch.uint8)
        return {"tile": tile.view(1, SIDE, SIDE) / 255, "water": number % 2}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=12)
    args = parser.parse_args()

    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=run_server, args=(theirs,), daemon=True).start()
    torch.set_num_threads(1)
    loader = DataLoader(Atlas(ours.recv()), args.batch_size, shuffle=True, num_workers=3)
    model = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))
    model(torch.zeros(1, 1, SIDE, SIDE))
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(args.epochs):
        start = time.perf_counter()
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["tile"]), batch["water"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"{len(loader.dataset) / (time.perf_counter() - start):.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
