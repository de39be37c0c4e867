"""Records of stores, through the node's cache: claimed, fetched if they are missing, and held."""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from headrace.errors import DamagedError, HeadraceError, RemoteError
from headrace.records import RemoteStats
from headrace.sources.stores.cache import Cache, Record
from headrace.sources.stores.client import Answer, Reader, check_process, endpoint_of, store_and_name
from headrace.sources.stores.failures import may_pass
from headrace.sources.stores.lease import Lease, Range, Wanted, coalesce
from headrace.sources.stores.threads import Threads, claims, requests

# The first and the longest pause between two claims of a record that another process fetches, in seconds.
CLAIM_PAUSES = 0.002, 0.1
# A record is fetched without keeping it if another process, which may have been stopped, has been fetching it
# for so many seconds.
PATIENCE = 300.0
# After so many failed requests in a row the store is down: `on_error` doesn't apply to their samples.
DOWN = 16
# How often bytes that don't have their checksum are fetched.
DAMAGED_TRIES = 3
# Whole objects whose size and version are remembered: some 50 MB. Others are requested again.
MOST_REMEMBERED = 200_000

# The bytes that are assumed of a whole object before the first size is known.
GUESS = 2 << 20

_located = lru_cache(maxsize=1 << 16)(store_and_name)


class Records:
    """The records that one process fetches into the cache in `folder`; for any thread. Raises ConfigError if
    this process was forked from one that used stores."""

    def __init__(self, options: Mapping[str, Any], folder: Path, capacity: int) -> None:
        check_process()
        self.pid = os.getpid()
        self.capacity = capacity
        # The cache counts the same record at each claim while another process fetches it.
        self._missing = 0
        self._options = options
        self._cache = Cache(folder, capacity)
        self._readers: dict[str, Reader] = {}
        self._lock = threading.Lock()
        self._failed = 0  # requests in a row
        self._sizes = 0, 0  # the sum and the number of the sizes of whole objects
        # Size and version by URL, of the whole objects that were requested last.
        self._remembered: dict[str, tuple[int, str]] = {}
        self._held = threading.local()  # `places`: by record that a thread holds, its lease and place in that

    def begin(self, wanted: Sequence[Wanted]) -> Lease:
        """Starts to fetch all of `wanted`; returns at once."""
        sizes = self._sizes
        lease = Lease(wanted, sizes[0] // sizes[1] if sizes[1] else GUESS)
        unknown = [i for i, each in enumerate(lease.wanted) if each.record is None]
        if unknown:
            missing = set(unknown)
            lease.begin_part()  # so that it isn't finished before all of them are started
            for i in unknown:
                self._start(requests, lease, partial(self._find, lease, i, missing))
            self._end_part(lease)
        else:
            self._start(claims, lease, partial(self._claim, lease, range(len(lease))))
        return lease

    def read(self, wanted: Wanted) -> bytes:
        """One record, now. Raises RemoteError."""
        lease, place = getattr(self._held, "places", {}).get(wanted, (None, 0))
        if lease is not None:
            return bytes(lease.read(place))
        lease = self.begin([wanted]).arrived()
        try:
            return lease.read(0)
        finally:
            lease.release()

    @contextmanager
    def holding(self, wanted: Sequence[Wanted]) -> Iterator[None]:
        """Within this, all of `wanted` are there to `read`, in this thread. Raises what kept all of them from
        it."""
        lease = self.begin(wanted).arrived()
        self._held.places = {each: (lease, i) for i, each in enumerate(wanted)}
        try:
            yield
        finally:
            self._held.places = {}
            lease.release()

    def start_fetch(self, url: str, start: int, stop: int, version: str | None) -> Future[Answer]:
        """Starts to read bytes `start` to `stop` - 1 of an object, bypassing the cache. The result fails if
        `version` (see `head`) is given and the object has another."""
        return requests.submit(partial(self._get, url, start, stop, version))

    def head(self, url: str) -> tuple[int, str]:
        """Asks for size and version (ETag, or size if there is none) of an object. Raises RemoteError."""
        return requests.submit(partial(self._head, url)).result()

    def stats(self) -> RemoteStats:
        """Counts of what this process did so far."""
        readers = list(self._readers.values())
        cache = self._cache.stats()
        return RemoteStats(
            bytes_fetched=sum(each.nbytes for each in readers),
            requests=sum(each.requests for each in readers),
            latency_seconds=max((each.latency_seconds for each in readers), default=0.0),
            cache_hits=cache.hits,
            cache_misses=self._missing,
            cache_evictions=cache.evictions,
            cache_bytes=cache.bytes,
            cache_capacity=cache.capacity,
        )

    def _reader(self, root: str) -> Reader:
        with self._lock:
            if root not in self._readers:
                self._readers[root] = Reader(root, self._options)
            return self._readers[root]

    def _request(self, url: str, send: Callable[[Reader, str], Answer]) -> Answer:
        """The answer about the object at `url`; counts the requests in a row that fail for a reason that may
        be the store's."""
        root, name = _located(url)
        reader = self._reader(root)
        try:
            answer = send(reader, name)
        except RemoteError as error:
            self._failed = self._failed + 1 if may_pass(error.__cause__) else 0
            raise
        self._failed = 0
        return answer

    def _get(self, url: str, start: int, stop: int | None, version: str | None) -> Answer:
        answer = self._request(url, lambda reader, name: reader.get(name, start, stop))
        if version is not None and version != answer.version:
            self._remembered.pop(url, None)  # the next attempt reads the object as it is then
            raise RemoteError(
                f"{url} was changed while it was read: its version was {version} and is {answer.version}."
                " Read it again once nobody writes to it any more"
            )
        return answer

    def _head(self, url: str) -> tuple[int, str]:
        answer = self._request(url, lambda reader, name: reader.head(name))
        return answer.size, answer.version

    def _start(self, threads: Threads, lease: Lease, work: Callable[[], None], delay: float = 0.0) -> None:
        """Has a part of a lease's work done."""
        lease.begin_part()

        def do() -> None:
            try:
                if not lease.released and lease.error is None:
                    work()
            except BaseException as error:
                lease.error = error
            self._end_part(lease)

        try:
            threads.start(do, delay)
        except RuntimeError:
            lease.end_part()
            raise

    def _end_part(self, lease: Lease) -> None:
        if not lease.end_part():
            return
        errors = list(lease.errors.values())
        if len(errors) == len(lease) > 1 and all(may_pass(error.__cause__) for error in errors):
            lease.error = lease.error or errors[0]  # all of them at once: it is the store
        try:
            self._give_up(lease, list(lease.claimed))
        except BaseException as error:
            lease.error = lease.error or error
        lease.finish()

    def _find(self, lease: Lease, i: int, missing: set[int]) -> None:
        """Finds size and version of a whole object. The last one of `missing` starts the claims."""
        wanted = lease.wanted[i]
        try:
            size, version = self._remembered.get(wanted.url) or self._head(wanted.url)
            with self._lock:
                self._remembered[wanted.url] = size, version
                self._sizes = self._sizes[0] + size, self._sizes[1] + 1
                if len(self._remembered) > MOST_REMEMBERED:
                    del self._remembered[next(iter(self._remembered))]
            store = object_key(_located(wanted.url)[0], self._options)
            record = Record(store, f"{wanted.url}\0{version}", size, None)
            lease.wanted[i] = replace(wanted, size=size, record=record, version=version)
        except HeadraceError as error:
            if self._failed >= DOWN:
                raise
            self._fail(lease, i, RemoteError(str(error)), error.__cause__)
        with lease.lock:
            missing.discard(i)
            is_last = not missing
        if is_last:
            located = [i for i in range(len(lease)) if i not in lease.errors]
            self._start(claims, lease, partial(self._claim, lease, located))

    def _claim(self, lease: Lease, positions: Sequence[int], waited: float = 0.0) -> None:
        """Claims records, and starts to fetch what isn't there; later the same for what others fetch, for
        which it has waited so many seconds."""
        by_state: dict[str, list[int]] = {"ready": [], "mine": [], "other": [], "full": []}
        answers = self._cache.claim([lease.record(i) for i in positions])
        for i, claim in zip(positions, answers, strict=True):
            by_state[claim.state].append(i)
            lease.paths[i] = claim.path
        if waited > PATIENCE:
            by_state["full"] += by_state.pop("other")
        lease.claimed.update(by_state["mine"])
        with self._lock:
            self._missing += len(by_state["mine"]) + len(by_state["full"])
        for state, keep in (("mine", True), ("full", False)):
            for part in coalesce(lease.wanted, by_state[state]):
                self._start(requests, lease, partial(self._fetch, lease, part, keep=keep))
        if by_state.get("other"):
            pause = min(CLAIM_PAUSES[0] + waited, CLAIM_PAUSES[1])  # twice as long each time
            again = partial(self._claim, lease, by_state["other"], waited + pause)
            self._start(claims, lease, again, pause)

    def _fetch(self, lease: Lease, part: Range, *, keep: bool, tries: int = 1) -> None:
        """Fetches the records in `part`, or notes why they failed; ends their claims."""
        wanted = lease.wanted[part.positions[0]]
        try:
            data = memoryview(b"")  # stores refuse ranges of nothing
            if part.stop > part.start:
                # What has a version is a whole object: stores may answer a range of all of it without one.
                stop = part.stop if wanted.version is None else None
                data = self._get(part.url, part.start, stop, wanted.version).data
        except RemoteError as error:
            if self._failed >= DOWN:
                raise
            if len(part.positions) == 1:
                self._fail(lease, part.positions[0], error, error.__cause__)
            else:  # one of them may be at fault, and the others readable
                self._fetch_alone(lease, part.positions, keep=keep, tries=tries)
            return
        pieces = {
            i: data[lease.wanted[i].start - part.start : lease.wanted[i].stop - part.start]
            for i in part.positions
        }
        damaged = self._put(lease, pieces, keep=keep)
        if damaged and tries == DAMAGED_TRIES:
            wrong = RemoteError(
                f"bytes {part.start:,} to {part.stop - 1:,} of {part.url} can't be used after"
                f" {DAMAGED_TRIES} tries: they don't have the checksum that the pack's index has for them."
                " The shard was changed or damaged: upload it again"
            )
            for i in damaged:
                self._fail(lease, i, wrong)
        else:
            self._fetch_alone(lease, damaged, keep=keep, tries=tries + 1)

    def _fetch_alone(self, lease: Lease, positions: Sequence[int], *, keep: bool, tries: int) -> None:
        for i in positions:
            part = Range(lease.wanted[i].url, lease.wanted[i].start, lease.wanted[i].stop, (i,))
            self._start(requests, lease, partial(self._fetch, lease, part, keep=keep, tries=tries))

    def _put(self, lease: Lease, pieces: dict[int, memoryview], *, keep: bool) -> list[int]:
        """Puts the records that are whole into the cache or into memory. Returns the others."""
        good, paths = list(pieces), list[str | None]()
        if not keep:
            good = [i for i in good if lease.record(i).checksum in (None, zlib.crc32(pieces[i]))]
            paths = [None] * len(good)
        while keep and good and not paths:
            try:
                paths = self._cache.add([lease.record(i) for i in good], [pieces[i] for i in good])
            except DamagedError as error:
                good = [i for i in good if lease.record(i).key not in error.keys]
        for i, path in zip(good, paths, strict=True):
            lease.claimed.discard(i)
            if path is None:  # there is no room, in the cache or on the disk
                lease.keep_in_memory(i, pieces[i])
            else:
                lease.paths[i] = path
        return sorted(set(pieces) - set(good))

    def _fail(self, lease: Lease, i: int, error: RemoteError, cause: BaseException | None = None) -> None:
        error.__cause__ = cause
        lease.errors[i] = error
        self._give_up(lease, [i])

    def _give_up(self, lease: Lease, positions: Sequence[int]) -> None:
        lost = [i for i in positions if i in lease.claimed]
        lease.claimed.difference_update(lost)
        if lost:
            self._cache.give_up([lease.record(i) for i in lost])


def object_key(url: str, options: Mapping[str, Any]) -> str:
    """Returns the name of an object, the same in every process of the node."""
    return f"{endpoint_of(url, options) or ''}\0{url}"
