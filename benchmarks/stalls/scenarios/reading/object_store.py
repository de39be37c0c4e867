"""Sound events out of a bucket, by requests. Bottleneck: 40 ms until an object arrives, one after the other.

The script starts the server that stands for the bucket.
Shows: the training thread is blocked in recv_into() for nearly all of its time.
Fix: many workers, which only wait.
"""

# expected: read
# advises: workers
# fix:
# -    loader = DataLoader(events, batch_size=args.batch_size, shuffle=True)
# +    loader = DataLoader(
# +        events, batch_size=args.batch_size, shuffle=True, num_workers=16, persistent_workers=True
# +    )

import argparse
import multiprocessing
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import requests
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SAMPLES, CLIPS = 4000, 1200


class Bucket(BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(0.04)  # stands for the way to the bucket and back
        clip = np.random.default_rng(int(self.path.rsplit("-")[-1])).standard_normal(SAMPLES, np.float32)
        self.send_response(200)
        self.send_header("Content-Length", str(clip.nbytes))
        self.end_headers()
        self.wfile.write(clip.tobytes())

    def log_message(self, *_):
        pass


def serve(addresses):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Bucket)
    addresses.put(server.server_address)
    server.serve_forever()


class Events(Dataset):
    def __init__(self, host, port):
        self.prefix = f"http://{host}:{port}/clip-"

    def __len__(self):
        return CLIPS

    def download(self, number):
        answer = requests.get(self.prefix + str(number), timeout=10)
        answer.raise_for_status()
        return np.frombuffer(answer.content, np.float32)

    def __getitem__(self, number):
        return torch.from_numpy(self.download(number).copy())[None], number % 5


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used: all data comes from the bucket")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()

    addresses = multiprocessing.Queue()
    multiprocessing.Process(target=serve, args=(addresses,), daemon=True).start()
    events = Events(*addresses.get())
    torch.set_num_threads(1)
    loader = DataLoader(events, batch_size=args.batch_size, shuffle=True)
    net = nn.Sequential(nn.Conv1d(1, 16, 65, stride=16), nn.ReLU(), nn.AdaptiveAvgPool1d(8), nn.Flatten(),
                        nn.Linear(128, 5))  # fmt: skip
    optimizer = torch.optim.Adam(net.parameters())
    for epoch in range(args.epochs):
        start = time.perf_counter()
        for clips, kinds in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(clips), kinds)
            loss.backward()
            optimizer.step()
        rate = len(events) / (time.perf_counter() - start)
        print(f"epoch {epoch}: loss {loss.item():.3f}, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
