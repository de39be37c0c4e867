"""Small CNN on thumbnails out of an object store. Bottleneck: each GET takes 25 ms, two run at a time.

The script starts the server that stands for the store: a thread per request, which sleeps, then answers.
Shows: workers are blocked in recv(); cores are idle.
Fix: many more workers, as they only wait.
"""

# expected: read workers
# fix:
# -    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
# +    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=16, persistent_workers=True)

import argparse
import multiprocessing
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, OBJECTS = 48, 2000


class Store(BaseHTTPRequestHandler):
    """Answers GET /NUMBER with that thumbnail's bytes."""

    def do_GET(self):
        time.sleep(0.025)  # stands for the way to the store and back
        pixels = np.random.default_rng(int(self.path[1:])).integers(0, 256, SIDE * SIDE * 3, np.uint8)
        self.send_response(200)
        self.send_header("Content-Length", str(pixels.nbytes))
        self.end_headers()
        self.wfile.write(pixels.tobytes())

    def log_message(self, *_):
        pass


def serve(ports):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    ports.put(server.server_address[1])
    server.serve_forever()


class Thumbnails(Dataset):
    def __init__(self, url):
        self.url = url

    def __len__(self):
        return OBJECTS

    def __getitem__(self, index):
        with urllib.request.urlopen(f"{self.url}/{index}") as response:
            data = response.read()
        image = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(3, SIDE, SIDE)
        return image.float() / 255, index % 10


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: all data comes from the store")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()

    ports = multiprocessing.Queue()
    multiprocessing.Process(target=serve, args=(ports,), daemon=True).start()
    dataset = Thumbnails(f"http://127.0.0.1:{ports.get()}")
    torch.set_num_threads(1)
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=2, persistent_workers=True)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.ReLU(), nn.Conv2d(32, 32, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.LazyLinear(10),
    )  # fmt: skip
    model(torch.zeros(1, 3, SIDE, SIDE))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        rate = len(dataset) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
