"""Records of stores, through the node's cache: claimed, fetched where they are missing, and held."""

from __future__ import annotations

import asyncio
import os
import weakref
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from headrace.cache import Cache, Record
from headrace.errors import DamagedError, HeadraceError, RemoteError
from headrace.records import RemoteStats
from headrace.remote.client import endpoint_of, store_and_name
from headrace.remote.failures import Failure
from headrace.remote.lease import Lease, Range, Wanted, coalesce
from headrace.remote.loop import Loop, loop
from headrace.remote.reader import Reader

T = TypeVar("T")

# A range is as long as this at most, but for a record that is longer: several are under way at a time.
MOST_BYTES = 4 << 20
# Bytes between two records that are read and dropped, at most.
MOST_GAP = 256 << 10
# The first and the longest pause between two claims of a record that another process fetches, or for which
# there is no room, in seconds.
CLAIM_PAUSES = 0.002, 0.1
# Threads that write to the cache: making a file mostly waits, where the disk is busy.
DISK_THREADS = 4
# After so many failed requests in a row the store is down: `on_error` doesn't apply to their samples.
DOWN = 16
# How often bytes that don't have their checksum are fetched.
DAMAGED_TRIES = 3
# Whole objects whose size and version are remembered: some 50 MB. Others are requested again.
MOST_FOUND = 200_000

_located = lru_cache(maxsize=1 << 16)(store_and_name)


class Records:
    """Of one process. `begin` may be called by any thread; what is under way belongs to the loop's.

    Args:
        options: see `headrace.PackedDataset`.
        folder: of the cache.
        capacity: of the cache, in bytes.
    """

    def __init__(self, options: Mapping[str, Any], folder: Path, capacity: int) -> None:
        self.pid = os.getpid()
        self.folder = folder
        self.capacity = capacity
        # The cache counts the same record at each claim while there is no room.
        self._missing = 0
        self._options = options
        self._cache = Cache(folder, capacity)
        self._readers: dict[str, Reader] = {}
        self._loop = loop()
        self._unfinished: list[Lease] = []  # in order of use
        self._failed = 0  # requests in a row, after their last try
        # Size and version by URL, of the whole objects that were found last.
        self._found: dict[str, tuple[int, str]] = {}
        self._disk = ThreadPoolExecutor(DISK_THREADS, thread_name_prefix="headrace-cache")
        weakref.finalize(self, _close_later, self._loop, self._disk, self._cache)

    def begin(self, wanted: Sequence[Wanted], *, urgent: bool = False) -> Lease:
        """Starts to fetch all of `wanted`; returns at once. `urgent`: somebody waits for it now."""
        lease = Lease(wanted, urgent=urgent)
        lease.end = self._end
        self._loop.start(self._serve(lease))
        return lease

    def read(self, wanted: Wanted) -> bytes:
        """One record, now. Raises RemoteError."""
        lease = self.begin([wanted], urgent=True).arrived()
        try:
            path = lease.paths[0]
            if path is None:
                raise lease.errors[0]
            return Path(path).read_bytes()[: lease.wanted[0].size]
        finally:
            lease.release()

    def fetch(self, url: str, start: int = 0, stop: int | None = None, version: str | None = None) -> bytes:
        """Part of an object, or all of it, bypassing the cache.

        Args:
            version: that it must have; see `head`. None: any.

        Raises:
            RemoteError: it can't be had, or has another version.
        """
        root, name = _located(url)
        answer = self._loop.start(self._reader(root).get(name, start, stop)).result()
        if version is not None and answer.version != version:
            raise _changed(url, version, answer.version)
        return bytes(answer.data)

    def head(self, url: str) -> tuple[int, str]:
        """Size and version of an object: its ETag, or its size where it has none. Raises RemoteError."""
        root, name = _located(url)
        answer = self._loop.start(self._reader(root).head(name)).result()
        return answer.size, answer.version

    def stats(self) -> RemoteStats:
        """What this process did so far."""
        readers = list(self._readers.values())
        cache = self._cache.stats()
        return RemoteStats(
            bytes_fetched=sum(each.nbytes for each in readers),
            requests=sum(each.requests for each in readers),
            retries=sum(each.retries for each in readers),
            concurrency=max((each.limit.now for each in readers), default=0),
            latency_seconds=max((each.limit.latency_seconds for each in readers), default=0.0),
            cache_hits=cache.hits,
            cache_misses=self._missing,
            cache_evictions=cache.evictions,
            cache_bytes=cache.bytes,
            cache_capacity=cache.capacity,
        )

    def _reader(self, root: str) -> Reader:
        reader = self._readers.get(root)
        if reader is None:
            reader = self._readers.setdefault(root, Reader(root, self._options))
        return reader

    async def _on_disk(self, work: Callable[..., T], *arguments: Any) -> T:
        """What `work` gives in another thread. Ends when that does, however often it is cancelled: what it
        did to a lease is known then."""
        job = asyncio.get_running_loop().run_in_executor(self._disk, work, *arguments)
        cancelled: asyncio.CancelledError | None = None
        while not job.done():
            try:
                await asyncio.wait([job])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            job.exception()  # retrieved, or asyncio would log it
            raise cancelled
        return job.result()

    async def _serve(self, lease: Lease) -> None:
        lease.task = asyncio.current_task()
        self._unfinished.append(lease)
        fetching: list[asyncio.Task[None]] = []
        try:
            await self._find(lease)
            await self._claim(lease, fetching)
            await asyncio.gather(*fetching)
        except asyncio.CancelledError:
            lease.error = RemoteError("The request was cancelled.")
        except Exception as error:
            lease.error = error
        finally:
            for task in fetching:
                task.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)
            self._unfinished.remove(lease)
            lease.finished()

    async def _claim(self, lease: Lease, fetching: list[asyncio.Task[None]]) -> None:
        """Claims all records until each is there, has failed, or is fetched by a task in `fetching`."""
        rest = [i for i in range(len(lease)) if i not in lease.errors]
        pause = CLAIM_PAUSES[0]
        while rest:
            by_state = await self._on_disk(self._claim_once, lease, rest)
            fetching += self._fetch(lease, by_state["mine"], keep=True)
            # There will be room once earlier ones are done with; the first of all can't wait for that.
            if by_state["full"] and (lease.urgent or self._unfinished[0] is lease):
                fetching += self._fetch(lease, by_state["full"], keep=False)
                rest = by_state["other"]
            else:
                rest = sorted(by_state["other"] + by_state["full"])
            if rest:
                await asyncio.sleep(pause)
                pause = min(2 * pause, CLAIM_PAUSES[1])

    def _claim_once(self, lease: Lease, which: list[int]) -> dict[str, list[int]]:
        """Claims the records `which` and returns them by the state of their claims."""
        records = [_record(lease, i) for i in which]
        claims = self._cache.claim(records)
        by_state: dict[str, list[int]] = {"ready": [], "mine": [], "other": [], "full": []}
        for i, claim in zip(which, claims, strict=True):
            by_state[claim.state].append(i)
            if claim.state == "ready":
                lease.paths[i] = claim.path
        lease.mine.update(by_state["mine"])
        return by_state

    def _fetch(self, lease: Lease, which: list[int], *, keep: bool) -> list[asyncio.Task[None]]:
        reads = [(lease.wanted[i].url, lease.wanted[i].start, lease.wanted[i].size or 0) for i in which]
        if not reads:
            return []
        self._missing += len(reads)
        gap = self._reader(_located(reads[0][0])[0]).limit.gap(MOST_GAP)
        ranges = coalesce(reads, gap, MOST_BYTES)
        return [
            asyncio.create_task(self._fetch_range(lease, part, [which[k] for k in part.parts], keep=keep))
            for part in ranges
        ]

    async def _fetch_range(self, lease: Lease, part: Range, which: list[int], *, keep: bool) -> None:
        """Gets the records `which`, all in `part`, or notes why not; ends their claims."""
        try:
            data = await self._data(part, lease.wanted[which[0]].version)
            good = await self._put(lease, part, which, data, keep=keep)
            for i in sorted(set(which) - set(good)):
                try:
                    await self._fetch_damaged(lease, i, keep=keep)
                except RemoteError as error:
                    lease.errors[i] = error
        except RemoteError as error:
            if self._is_down(error):
                raise
            if len(which) > 1:  # one of them may be at fault, and the others readable
                await self._fetch_alone(lease, set(which), keep=keep)
            else:
                lease.errors.update({i: error for i in which if lease.paths[i] is None})
        finally:
            await self._on_disk(self._give_up, lease, which)

    async def _fetch_alone(self, lease: Lease, which: set[int], *, keep: bool) -> None:
        """The same of each record by itself. Ends when all of them have, so that claims are given up then."""
        tasks = (self._fetch_range(lease, _alone(lease, i), [i], keep=keep) for i in which)
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if ended is not None:
                raise ended
        errors = [lease.errors.get(i) for i in which]
        if all(error is not None and _may_pass(error) for error in errors):
            raise next(filter(None, errors))  # all of them at once: it is the store

    def _is_down(self, error: RemoteError) -> bool:
        """Whether it is the store that fails, and not the single object."""
        self._failed = self._failed + 1 if _may_pass(error) else 0
        return self._failed >= DOWN

    async def _data(self, part: Range, version: str | None) -> memoryview:
        if not part.nbytes:
            return memoryview(b"")  # stores refuse ranges of nothing
        root, name = _located(part.name)
        answer = await self._reader(root).get(name, part.start, part.stop)
        self._failed = 0
        if version is not None and version != answer.version:
            self._found.pop(part.name, None)  # the next attempt reads the object as it is then
            raise _changed(part.name, version, answer.version)
        return memoryview(answer.data)

    async def _put(
        self, lease: Lease, part: Range, which: list[int], data: memoryview, *, keep: bool
    ) -> list[int]:
        """Puts the records that are whole where they are kept; returns which."""
        pieces = {}
        for i in which:
            at = lease.wanted[i].start - part.start
            pieces[i] = data[at : at + (lease.wanted[i].size or 0)]
        return await self._on_disk(self._put_pieces, lease, pieces, keep)

    def _put_pieces(self, lease: Lease, pieces: dict[int, memoryview], keep: bool) -> list[int]:
        good = list(pieces)
        if not keep:
            good = [i for i in good if _record(lease, i).checksum in (None, zlib.crc32(pieces[i]))]
            for i in good:
                lease.keep_in_memory(i, pieces[i])
            return good
        paths: list[str | None] = []
        while good:
            records: list[Any] = [lease.wanted[i].record for i in good]
            try:
                paths = self._cache.add(records, [pieces[i] for i in good])
                break
            except DamagedError as error:
                damaged = set(error.keys)
                good = [i for i in good if _record(lease, i).key not in damaged]
        lease.mine.difference_update(good)
        for i, path in zip(good, paths, strict=False):
            if path is None:  # the disk is full
                lease.keep_in_memory(i, pieces[i])
            else:
                lease.paths[i] = path
        return good

    async def _fetch_damaged(self, lease: Lease, i: int, *, keep: bool) -> None:
        """Fetches a record again whose bytes were not those that were expected. Raises RemoteError."""
        wanted, part = lease.wanted[i], _alone(lease, i)
        for _ in range(DAMAGED_TRIES - 1):
            if await self._put(lease, part, [i], await self._data(part, wanted.version), keep=keep):
                return
        raise RemoteError(
            f"bytes {part.start:,} to {part.stop - 1:,} of {wanted.url} can't be used after {DAMAGED_TRIES}"
            " tries: they don't have the checksum that the pack's index has for them. The shard was changed"
            " or damaged: upload it again"
        )

    async def _find(self, lease: Lease) -> None:
        """Finds the sizes and versions of whole objects."""

        async def find(i: int) -> None:
            wanted = lease.wanted[i]
            try:
                size, version = self._found.get(wanted.url) or await self._head(wanted.url)
                record = self._record_of_object(wanted.url, size, version)
                lease.wanted[i] = replace(wanted, size=size, record=record, version=version)
            except HeadraceError as error:
                lease.errors[i] = RemoteError(str(error))

        unknown = [i for i, wanted in enumerate(lease.wanted) if wanted.record is None]
        await asyncio.gather(*map(find, unknown))

    async def _head(self, url: str) -> tuple[int, str]:
        """Size and version of a whole object, which are remembered."""
        root, name = _located(url)
        answer = await self._reader(root).head(name)
        self._found[url] = answer.size, answer.version
        if len(self._found) > MOST_FOUND:
            del self._found[next(iter(self._found))]
        return answer.size, answer.version

    def _record_of_object(self, url: str, size: int, version: str) -> Record:
        store = object_key(_located(url)[0], self._options)
        return Record(store, f"{url}\0{version}", size, None)

    def _end(self, lease: Lease) -> None:
        if not self._loop.ended:
            self._loop.start(self._release(lease))

    async def _release(self, lease: Lease) -> None:
        if lease.task is not None and not lease.task.done():
            lease.task.cancel()
            await asyncio.gather(lease.task, return_exceptions=True)
        await self._on_disk(self._let_go, lease)

    def _let_go(self, lease: Lease) -> None:
        self._give_up(lease, sorted(lease.mine))
        lease.forget_memory()

    def _give_up(self, lease: Lease, which: list[int]) -> None:
        lost = [i for i in which if i in lease.mine]
        lease.mine.difference_update(lost)
        if lost:
            self._cache.give_up([_record(lease, i) for i in lost])


def _alone(lease: Lease, i: int) -> Range:
    """The range of one record."""
    wanted = lease.wanted[i]
    return Range(wanted.url, wanted.start, wanted.start + (wanted.size or 0), (0,))


def _close_later(own: Loop, disk: ThreadPoolExecutor, cache: Cache) -> None:
    """Runs wherever the garbage collector does, in any thread, amid anything: it must wait for no lock."""
    if own.pid != os.getpid():
        return  # a forked child's copies are the cache's business; the parent keeps its own
    # At the process's end the loop may be closed: the kernel then lets go of what the cache holds.
    with suppress(RuntimeError):
        own.loop.call_soon_threadsafe(_close, disk, cache)


def _close(disk: ThreadPoolExecutor, cache: Cache) -> None:
    try:
        disk.submit(cache.close)  # after what is still to be released
        disk.shutdown(wait=False)
    except RuntimeError:  # at the interpreter's end threads take nothing new
        cache.close()


def _may_pass(error: RemoteError) -> bool:
    """Whether the same request may succeed later, as where a store is overloaded."""
    cause = error.__cause__
    return cause is not None and not Failure.of(cause).final


def _changed(url: str, before: str, now: str) -> RemoteError:
    return RemoteError(
        f"{url} was changed while it was read: its version was {before} and is {now}. Read it again once"
        " nobody writes to it any more"
    )


def _record(lease: Lease, i: int) -> Record:
    record = lease.wanted[i].record
    assert record is not None
    return record


def object_key(url: str, options: Mapping[str, Any]) -> str:
    """Which object this is, on every process of the node."""
    return f"{endpoint_of(url, options) or ''}\0{url}"
