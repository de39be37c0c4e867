"""Whatever three clients do, in whatever order: the bound holds, and what is in hand is there."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.cache import Cache
from support.cache_records import BLOCK, bytes_on_disk, content, record

CAPACITY = 6 * BLOCK
SIZES = (0, 10, 4096, 5000, 8193)  # of 1, 1, 1, 2, 3 blocks
clients = st.integers(0, 2)
numbers = st.lists(st.integers(0, 11), min_size=1, max_size=5)
positions = st.one_of(st.none(), st.integers(0, 50))


def size(number: int) -> int:
    return SIZES[number % len(SIZES)]


class Clients(RuleBasedStateMachine):
    """Each has `held` (records, and how often) and `mine` (that it is to fetch)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.caches = [Cache(self.folder, CAPACITY) for _ in range(3)]
        self.held: list[Counter[int]] = [Counter() for _ in range(3)]
        self.mine: list[set[int]] = [set() for _ in range(3)]
        self.clock = 0

    @rule(client=clients, wanted=numbers, ahead=st.integers(0, 9))
    def claim(self, client: int, wanted: list[int], ahead: int) -> None:
        self.clock += 1
        fetched = set().union(*self.mine)
        places = [self.clock + i * ahead for i in range(len(wanted))]
        claims = self.caches[client].claim([record(n, size(n)) for n in wanted], places)
        for number, claim in zip(wanted, claims, strict=True):
            if claim.state == "ready":
                assert claim.path is not None
                assert Path(claim.path).read_bytes() == content(number, size(number))
                self.held[client][number] += 1
            elif claim.state == "mine":
                assert number not in fetched | self.mine[client], "two fetch it"
                assert not any(held[number] for held in self.held), "in hand, but not there"
                self.mine[client].add(number)
            elif claim.state == "other":
                assert number in fetched | self.mine[client], "nobody fetches it"

    @rule(client=clients, share=st.integers(1, 3))
    def add(self, client: int, share: int) -> None:
        some = sorted(self.mine[client])[::share]
        paths = self.caches[client].add(
            [record(n, size(n)) for n in some], [content(n, size(n)) for n in some]
        )
        for number, path in zip(some, paths, strict=True):
            assert path is not None
            self.held[client][number] += 1
            self.mine[client].discard(number)

    @rule(client=clients)
    def give_up(self, client: int) -> None:
        self.caches[client].give_up([record(n, size(n)) for n in self.mine[client]])
        self.mine[client].clear()

    @rule(client=clients, following=st.lists(positions, min_size=12, max_size=12))
    def release(self, client: int, following: list[int | None]) -> None:
        some = [number for number, count in self.held[client].items() if count]
        places = [None if p is None else self.clock + p for p in following[: len(some)]]
        self.caches[client].release([record(n, size(n)) for n in some], places)
        self.held[client] -= Counter(some)

    @rule(client=clients, wanted=numbers)
    def expect(self, client: int, wanted: list[int]) -> None:
        self.caches[client].expect([record(n, size(n)) for n in wanted], [self.clock + n for n in wanted])

    @rule(name=st.integers(0, 40))
    def lose(self, name: int) -> None:
        """A file, while nobody has any in hand."""
        paths = sorted(self.folder.glob("headrace-*/[0-9a-f][0-9a-f]/*"))
        if paths and not any(held.total() for held in self.held):
            paths[name % len(paths)].unlink()

    @rule(client=clients)
    def begin_anew(self, client: int) -> None:
        self.caches[client].close()
        self.caches[client] = Cache(self.folder, CAPACITY)
        self.held[client].clear()
        self.mine[client].clear()

    @invariant()
    def the_bound_holds(self) -> None:
        stats = self.caches[0].stats()
        assert bytes_on_disk(self.folder) <= stats.bytes <= CAPACITY

    def teardown(self) -> None:
        for cache in self.caches:
            cache.close()
        shutil.rmtree(self.folder)


TestClients = Clients.TestCase
TestClients.settings = settings(max_examples=25, stateful_step_count=30)
