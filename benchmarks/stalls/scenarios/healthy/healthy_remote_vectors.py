"""Topics of sentences, whose vectors a server keeps. Healthy: four workers are ahead of the step.

The script starts that server: a thread for each connection, which takes 6 ms for an answer.
Shows: workers are blocked in recv() nearly all the time, and one request after the other; no step waits.
"""

# expected: healthy

import argparse
import multiprocessing
import socket
import socketserver
import time

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SENTENCES, TOKENS, WIDTH, TOPICS = 1024, 32, 64, 12


class VectorRequests(socketserver.StreamRequestHandler):
    """Answers each line, the number of a sentence, with its vectors."""

    def handle(self):
        for line in self.rfile:
            number = int(line)
            time.sleep(0.006)  # a search in the store
            vectors = self.server.noise[number % 64] + self.server.topics[number % TOPICS]
            self.wfile.write(vectors.astype(np.float16).tobytes())


def serve(pipe):
    rng = np.random.default_rng(75)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), VectorRequests) as server:
        server.daemon_threads = True
        server.noise = rng.standard_normal((64, TOKENS, WIDTH))
        server.topics = rng.standard_normal((TOPICS, 1, WIDTH))
        pipe.send(server.server_address)
        server.serve_forever()


def start_server():
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.Process(target=serve, args=(theirs,), daemon=True).start()
    return ours.recv()


class Sentences(Dataset):
    def __init__(self, address):
        self.address = address
        self.stream = None

    def __len__(self):
        return SENTENCES

    def fetch(self, number):
        if self.stream is None:
            self.stream = socket.create_connection(self.address).makefile("rwb")
        self.stream.write(b"%d\n" % number)
        self.stream.flush()
        answer = self.stream.read(2 * TOKENS * WIDTH)
        return np.frombuffer(answer, dtype=np.float16).reshape(TOKENS, WIDTH)

    def __getitem__(self, index):
        return torch.from_numpy(self.fetch(index).astype(np.float32)), index % TOPICS


class TopicModel(nn.Module):
    def __init__(self, depth=6):
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 768, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, TOPICS)

    def forward(self, vectors):
        return self.head(self.encoder(vectors).mean(1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used, the server has it")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16)
    args = parser.parse_args()
    if args.epochs == 0:
        return

    torch.set_num_threads(1)
    loader = DataLoader(
        Sentences(start_server()), args.batch_size, shuffle=True, num_workers=4, persistent_workers=True
    )
    model = TopicModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4)
    for epoch in range(args.epochs):
        start, seen, right = time.perf_counter(), 0, 0
        for vectors, topics in loader:
            scores = model(vectors)
            loss = nn.functional.cross_entropy(scores, topics, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += (scores.argmax(1) == topics).sum().item()
            seen += len(topics)
        rate = seen / (time.perf_counter() - start)
        print(f"epoch {epoch}: {right / seen:.1%} right, {rate:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
