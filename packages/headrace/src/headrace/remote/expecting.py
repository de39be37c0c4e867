"""Tells the cache, during an epoch, which records the rest of the epoch needs.

The cache may hold them already: from an earlier job, another one, or an epoch whose successor wasn't known.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from headrace.cache import Cache, Record
from headrace.errors import CacheError
from headrace.remote.loop import Loop

# Records announced at a time: claims wait for the index meanwhile, some milliseconds.
PIECE = 500
# As long as this part of the cache is free nothing is evicted, and nothing has to be announced.
FREE_SHARE = 0.3
LOOK_SECONDS = 0.5
# The share of the time that is spent on announcing: 10⁸ samples take half an hour, hours before most of them
# are claimed.
SHARE = 0.5

# (number of the epoch's sample, count) → the records of so many from there on, fewer at the epoch's end. None
# in place of one: not known yet.
Coming = Callable[[int, int], "list[Record | None]"]


class Expecting:
    """Announces to the cache what an epoch will claim; begins at once, in the background.

    Args:
        loop: event loop that it runs and waits in.
        on_disk: runs a function in a thread that may wait for the cache, and gives its result.
        cache: cache that the records are announced to.
        coming: gives the records that the epoch needs; see `Coming`.
        start: position of the epoch's sample number 0.

    Attributes:
        passed: number of the epoch's samples that were claimed, kept up to date by the owner.
        work: done once everything was announced.
    """

    def __init__(
        self,
        loop: Loop,
        on_disk: Callable[..., Awaitable[Any]],
        cache: Cache,
        coming: Coming,
        start: int,
    ) -> None:
        self.passed = 0
        self._loop = loop
        self._on_disk = on_disk
        self._cache = cache
        self._coming = coming
        self._start = start
        self._announced = 0  # samples of the epoch that the cache knows of, or that were claimed before
        self._task: asyncio.Task[Any] | None = None
        self._ended = False
        self.work: Future[None] = loop.start(self._run())

    def end(self) -> int:
        """Ends the epoch, complete or not, and drops what was announced and not claimed; a forked child drops
        nothing. Returns the position that the next epoch may begin at.
        """
        if self._loop.pid == os.getpid() and not self._ended and not self._loop.ended:
            self._ended = True
            self._loop.start(self._drop())
        being_announced = 0 if self.work.done() else PIECE
        return self._start + max(self._announced + being_announced, self.passed)

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            while not self._ended:
                started = time.monotonic()
                if not await self._on_disk(self._evicts):
                    await asyncio.sleep(LOOK_SECONDS)
                elif not await self._on_disk(self._announce):
                    return
                else:
                    await asyncio.sleep((time.monotonic() - started) * (1 / SHARE - 1))
        except CacheError:
            return  # claims meet the same error, and report it

    async def _drop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(CacheError):
            while self._announced > self.passed and await self._on_disk(
                self._cache.skip, self._start + self._announced
            ):
                pass

    def _evicts(self) -> bool:
        stats = self._cache.stats()
        return stats.bytes > (1 - FREE_SHARE) * stats.capacity

    def _announce(self) -> bool:
        """Of the next piece; whether there was one."""
        first = max(self._announced, self.passed)
        records = self._coming(first, PIECE)
        if not records:
            return False
        # Noted before: the thread continues if this is cancelled.
        self._announced = first + len(records)
        at = self._start + first
        known = [(record, at + i) for i, record in enumerate(records) if record is not None]
        self._cache.expect([record for record, _ in known], [position for _, position in known])
        return True
