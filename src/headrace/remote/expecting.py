"""What an epoch needs of what the cache holds already: from an earlier job, another one, or an epoch whose
successor wasn't known. The cache is told beside the training, from the next sample to the epoch's end."""

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

# Records told at a time: claims wait for the index meanwhile, some milliseconds.
PIECE = 500
# As long as this part of the cache is free nothing is evicted, and nothing has to be told.
FREE_SHARE = 0.3
LOOK_SECONDS = 0.5
# Of the time, spent on telling: 10⁸ samples take half an hour, hours before most of them are claimed.
SHARE = 0.5

# (number of the epoch's sample, count) → the records of so many from there on, fewer at the epoch's end. None
# in place of one: not known yet.
Coming = Callable[[int, int], "list[Record | None]"]


class Expecting:
    """Tells the cache what an epoch will claim; begins at once, in the background.

    Args:
        loop: where it waits.
        on_disk: runs a function in a thread that may wait for the cache.
        cache: to be told.
        coming: what the epoch needs.
        start: position of the epoch's sample number 0.

    Attributes:
        passed: samples of the epoch that were claimed, to be kept up by the owner: nobody needs to be told.
        work: done once everything was told.
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
        self._told = 0  # samples of the epoch that the cache was told of, or that were claimed before
        self._task: asyncio.Task[Any] | None = None
        self._ended = False
        self.work: Future[None] = loop.start(self._run())

    def end(self) -> int:
        """Of the epoch, whether or not it was left before; drops what was told and not claimed. Returns the
        position that the next epoch may begin at. Drops nothing in a forked child."""
        if self._loop.pid == os.getpid() and not self._ended and not self._loop.loop.is_closed():
            self._ended = True
            self._loop.start(self._drop())
        being_told = 0 if self.work.done() else PIECE
        return self._start + max(self._told + being_told, self.passed)

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            while not self._ended:
                begun = time.monotonic()
                if not await self._on_disk(self._evicts):
                    await asyncio.sleep(LOOK_SECONDS)
                elif not await self._on_disk(self._tell):
                    return
                else:
                    await asyncio.sleep((time.monotonic() - begun) * (1 / SHARE - 1))
        except CacheError:
            return  # claims meet the same error, and tell it

    async def _drop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(CacheError):
            while self._told > self.passed and await self._on_disk(
                self._cache.skip, self._start + self._told
            ):
                pass

    def _evicts(self) -> bool:
        stats = self._cache.stats()
        return stats.bytes > (1 - FREE_SHARE) * stats.capacity

    def _tell(self) -> bool:
        """Of the next piece; whether there was one."""
        first = max(self._told, self.passed)
        records = self._coming(first, PIECE)
        if not records:
            return False
        # By then, should it be cancelled: the thread goes on.
        self._told = first + len(records)
        at = self._start + first
        known = [(record, at + i) for i, record in enumerate(records) if record is not None]
        self._cache.expect([record for record, _ in known], [position for _, position in known])
        return True
