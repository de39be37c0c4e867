"""Topics of papers in a graph of citations. Bottleneck: collate sorts the whole graph for each batch.

Shows: the worker computes in SciPy's tocsr(), below the collate function; samples are mere numbers.
Fix: convert the matrix once.
"""

# expected: collate
# names: tocsr | collate_papers | neighbors_of
# needs: scipy
# fix:
# -        self.citations = sparse.coo_matrix((np.ones(len(citing)), (citing, cited)), shape=(PAPERS, PAPERS))
# +        self.citations = sparse.coo_matrix((np.ones(len(citing)), (citing, cited)), shape=(PAPERS, PAPERS))
# +        self.citations = self.citations.tocsr()
#
# -        rows = self.citations.tocsr()[papers]
# +        rows = self.citations[papers]

import argparse
import time

import numpy as np
import torch
from scipy import sparse
from torch import nn
from torch.utils.data import DataLoader

PAPERS, CITATIONS, WORDS, TOPICS = 24_000, 700_000, 96, 8


class Graph:
    """A citation goes to a paper of the same topic more often than not."""

    def __init__(self):
        rng = np.random.default_rng(45)
        self.topics = np.sort(rng.integers(0, TOPICS, PAPERS))
        citing = rng.integers(0, PAPERS, CITATIONS)
        near = np.clip(citing + rng.normal(0, PAPERS / TOPICS / 3, CITATIONS).astype(int), 0, PAPERS - 1)
        cited = np.where(rng.random(CITATIONS) < 0.7, near, rng.integers(0, PAPERS, CITATIONS))
        self.citations = sparse.coo_matrix((np.ones(len(citing)), (citing, cited)), shape=(PAPERS, PAPERS))
        words = rng.standard_normal((PAPERS, WORDS)) + 0.2 * np.eye(TOPICS, WORDS)[self.topics]
        self.words = torch.from_numpy(words).float()

    def neighbors_of(self, papers):
        """(positions in `papers`, papers that these cite)"""
        rows = self.citations.tocsr()[papers]
        edges = rows.tocoo()
        return torch.from_numpy(edges.row).long(), torch.from_numpy(edges.col).long()

    def collate_papers(self, papers):
        position, cited = self.neighbors_of(papers)
        return torch.tensor(papers), position, cited, torch.from_numpy(self.topics[papers])


class Sage(nn.Module):
    def __init__(self, width=192):
        super().__init__()
        self.own = nn.Linear(WORDS, width)
        self.message = nn.Sequential(nn.Linear(WORDS, width), nn.ReLU())
        self.head = nn.Sequential(nn.ReLU(), nn.Dropout(0.3), nn.Linear(width, TOPICS))

    def forward(self, own, cited, position):
        messages = self.message(cited)
        total = torch.zeros(len(own), messages.shape[1]).index_add(0, position, messages)
        count = torch.bincount(position, minlength=len(own)).clamp(min=1)
        return self.head(self.own(own) + total / count[:, None])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", help="not used")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=192)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(0)
    graph = Graph()
    loader = DataLoader(
        range(PAPERS),
        batch_size=args.batch_size,
        shuffle=True,
        collate_fn=graph.collate_papers,
        num_workers=1,
        persistent_workers=True,
    )
    model = Sage()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4)
    for epoch in range(args.epochs):
        start, seen, right = time.perf_counter(), 0, 0
        for papers, position, cited, topics in loader:
            optimizer.zero_grad()
            out = model(graph.words[papers], graph.words[cited], position)
            loss = nn.functional.cross_entropy(out, topics)
            loss.backward()
            optimizer.step()
            right += (out.argmax(dim=1) == topics).sum().item()
            seen += len(papers)
        seconds = time.perf_counter() - start
        print(f"Epoch {epoch:02d}, Acc: {right / seen:.4f}, {seen / seconds:.1f} samples/s", flush=True)


if __name__ == "__main__":
    main()
