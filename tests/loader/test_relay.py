"""Changing the kind of workers in the middle of an epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset

import headrace
from headrace.engine.producer import Made
from headrace.engine.relay import Relay
from headrace.loader.workers import PythonWorkers
from headrace.order.batches import IndexBatch
from headrace.tuning.policy import Workers


class Ahead:
    """A producer that takes `depth` batches ahead."""

    def __init__(self, kind: int, batches: Iterator[IndexBatch]) -> None:
        self.kind = kind
        self.batches = batches
        self.depth = 2
        self.pending: deque[IndexBatch] = deque()
        self.taken = 0
        self.closed = False
        self.fill()

    def fill(self) -> None:
        while len(self.pending) < self.depth and (batch := next(self.batches, None)) is not None:
            self.pending.append(batch)

    def __next__(self) -> Made:
        self.fill()
        if not self.pending:
            raise StopIteration
        self.taken += 1
        return Made((self.kind, int(self.pending.popleft().indices[0])), 1, self.taken)

    def ready(self) -> bool:
        return True

    @property
    def in_flight(self) -> int:
        return len(self.pending)

    def tune(self, settings: Mapping[str, int]) -> None:
        self.depth = settings["depth"]

    def close(self) -> None:
        self.closed = True


@given(
    st.integers(0, 60), st.dictionaries(st.integers(0, 60), st.tuples(st.integers(0, 1), st.integers(1, 9)))
)
def test_the_order_stays_whatever_is_changed(count: int, changes: dict[int, tuple[int, int]]) -> None:
    batches = [IndexBatch(np.array([i]), np.zeros(1, np.int64)) for i in range(count)]
    relay = Relay(Ahead, iter(batches), 0)
    received, kinds = [], set()
    for step in range(count + 1):
        if step in changes:
            processes, depth = changes[step]
            relay.tune({"processes": processes, "depth": depth})
        try:
            made = next(relay)
        except StopIteration:
            break
        assert made.taken == step + 1
        kinds.add(made.data[0])
        received.append(made.data[1])
    assert received == list(range(count))
    assert kinds <= {0, 1}
    relay.close()


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return 200

    def __getitem__(self, index: int) -> int:
        return index * index


def test_threads_and_processes_take_turns_in_one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(loader: Any, indices: Any) -> tuple[Workers, bool, Any]:
        return Workers("thread", 2, "for the test"), True, indices

    monkeypatch.setattr("headrace.loader.workers._choose", choose)
    loader = headrace.DataLoader(Squares(), 5, seed=1, shuffle=True)
    epoch = iter(loader)
    received = []
    for number, batch in enumerate(epoch):
        received += batch.tolist()
        assert loader.tuning._producer is not None
        producer = loader.tuning._producer()
        assert isinstance(producer, Relay)
        if number % 10 == 4:
            producer.tune({"processes": number // 10 % 2, "threads": 3, "workers": 2, "depth": 4})
    alone = headrace.DataLoader(Squares(), 5, seed=1, shuffle=True, num_workers=0)
    assert received == [i for batch in alone for i in batch.tolist()]
    assert isinstance(loader._workers, PythonWorkers)
