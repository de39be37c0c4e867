"""Requests to one store: as many at a time as increase throughput, retried where they fail, and counted.

How many are in flight at a time is found by measuring. By Little's law, throughput is requests in flight ×
bytes of one ÷ seconds of one. As long as the store and the network aren't full, the seconds stay the same
and more requests give more throughput; from then on they only take longer. So their number doubles as long
as that pays, or one takes no longer than before; then a step more is tried now and then.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from headrace.errors import RemoteError
from headrace.remote.client import RETRY, Answer, ObstoreClient
from headrace.remote.failures import Failure, Retry
from headrace.remote.helper import HelperClient

FIRST = 16
LEAST = 2
MOST = 256

# A step up is kept where it brings this part of what it would bring if nothing were full.
WORTH = 0.25
# As soon as before: within this factor of the quickest round's mean.
AS_SOON = 1.25
AS_LITTLE = 0.8
# Rounds from one trial to the next, once the number has been found.
PATIENCE = 8
STEP = 1.5
# Of a new measurement, in the running means.
WEIGHT = 0.1


class Limit:
    """Requests that may be in flight. A round is as many of them as that, done while others waited.

    Attributes:
        now: the limit.
        latency_seconds: from request to first byte, a running mean; 0: not known.
        bytes_per_second: of one request's body, a running mean; 0: not known.
    """

    def __init__(self) -> None:
        self.now = FIRST
        self.latency_seconds = 0.0
        self.bytes_per_second = 0.0
        self._before = 0  # the limit that a trial comes from; 0: none is in flight
        self._rate_before = 0.0
        self._quickest = math.inf  # round: mean seconds of a request
        self._doubling = True
        self._settling = 0
        self._idle_rounds = 0
        self._begun: float | None = None
        self._nbytes = self._count = 0
        self._seconds = 0.0

    def done(self, at: float, nbytes: int, latency: float, body: float, *, saturated: bool) -> None:
        """A request is done.

        Args:
            at: time of its end, in seconds; only differences count.
            nbytes: number of bytes that it brought.
            latency: seconds from the request to its first byte.
            body: seconds from there to the last byte.
            saturated: whether another request waited for its end.
        """
        self.latency_seconds = _mean(self.latency_seconds, latency)
        if body > 0:
            self.bytes_per_second = _mean(self.bytes_per_second, nbytes / body)
        if not saturated:
            self._restart()  # the caller is the bottleneck, not the limit
            return
        if self._settling > 0:
            self._settling -= 1  # started under another limit
            return
        if self._begun is None:
            self._begun = at
            return
        self._nbytes += nbytes
        self._seconds += latency + body
        self._count += 1
        if self._count >= max(self.now, 4) and at > self._begun:
            limit = self.now
            self._end_round(self._nbytes / (at - self._begun))
            self._restart()
            self._settling = max(limit, self.now) if self.now != limit else 0

    def refused(self) -> None:
        """The store demands fewer requests (503, 429)."""
        self.now = max(LEAST, self.now // 2)
        self._doubling, self._before = False, 0
        self._idle_rounds = 0
        self._restart()

    def gap(self, most: int) -> int:
        """Bytes that cost no more to read and drop than another request does; `most` at most."""
        return min(most, int(self.latency_seconds * self.bytes_per_second))

    def _end_round(self, rate: float) -> None:
        seconds = self._seconds / self._count
        soon = seconds <= AS_SOON * self._quickest
        self._quickest = min(self._quickest, seconds)
        if self._before:
            self._judge(rate, soon=soon)
        elif self._doubling:
            self._try(2 * self.now, rate)
        else:
            self._idle_rounds += 1
            if self._idle_rounds >= PATIENCE:
                self._idle_rounds = 0
                self._try(int(STEP * self.now) + 1, rate)

    def _try(self, limit: int, rate: float) -> None:
        limit = min(limit, MOST)
        if limit > self.now:
            self._before, self._rate_before, self.now = self.now, rate, limit
        else:
            self._doubling = False

    def _judge(self, rate: float, *, soon: bool) -> None:
        before, self._before = self._before, 0
        expected = self._rate_before * self.now / before
        pays = rate - self._rate_before >= WORTH * (expected - self._rate_before)
        # A round that others disturbed may bring less though nothing is full.
        if pays or (soon and rate > AS_LITTLE * self._rate_before):
            if self._doubling:
                self._try(2 * self.now, rate)
            return
        self.now, self._doubling = before, False

    def _restart(self) -> None:
        self._begun = None
        self._nbytes = 0
        self._seconds = 0.0
        self._count = 0


def _mean(mean: float, value: float) -> float:
    return value if mean == 0.0 else (1 - WEIGHT) * mean + WEIGHT * value


# Whether this process was forked from one that may use obstore, whose threads don't exist here.
_forked = False


class Reader:
    """Reads from one store; for coroutines of `headrace.remote.loop`, of the process that made it.

    Args:
        root: URL of the store.
        options: see `headrace.PackedDataset`.

    Attributes:
        limit: of the requests in flight.
        requests: the number of requests sent, further tries included.
        retries: the number of further tries among them.
        nbytes: the number of bytes that successful requests brought.

    Raises:
        ConfigError: obstore isn't installed, or refuses the options.
    """

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self.root = root
        self.limit = Limit()
        self.requests = self.retries = self.nbytes = 0
        self.retry = Retry.from_options(options.get(RETRY))
        self._client = (HelperClient if _forked else ObstoreClient)(root, options)
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Not the generators of the process, which are the user's.
        self._random = random.Random(os.urandom(8))

    async def get(self, name: str, start: int = 0, stop: int | None = None) -> Answer:
        """Bytes `start` to `stop` - 1 of an object; None: all of it.

        Raises:
            RemoteError: it couldn't be had; names URL, range, cause and the number of tries.
        """
        what = f"bytes {start:,} to {stop - 1:,} of {self.url(name)}" if stop is not None else self.url(name)
        return await self._tried(what, name, start, stop, head=False)

    async def head(self, name: str) -> Answer:
        """Size and ETag of an object. Raises RemoteError."""
        return await self._tried(f"size and ETag of {self.url(name)}", name, 0, None, head=True)

    def url(self, name: str) -> str:
        """Of an object."""
        return f"{self.root.rstrip('/')}/{name}"

    async def _tried(self, what: str, name: str, start: int, stop: int | None, *, head: bool) -> Answer:
        failed = 0
        while True:
            try:
                return await self._once(name, start, stop, head=head)
            except Exception as error:
                failed += 1
                failure = Failure.of(error)
                if failed >= self.retry.tries or failure.final:
                    tries = "1 try" if failed == 1 else f"{failed} tries"
                    raise RemoteError(f"{what} can't be read after {tries}: {failure}") from error
                if failure.busy:
                    self.limit.refused()
            self.retries += 1
            await asyncio.sleep(self.retry.wait(failed, self._random))

    async def _once(self, name: str, start: int, stop: int | None, *, head: bool) -> Answer:
        await self._enter()
        try:
            self.requests += 1
            answer = await (self._client.head(name) if head else self._client.get(name, start, stop))
            wanted = 0 if head else (answer.size if stop is None else stop) - start
            if len(answer.data) != wanted:
                raise OSError(f"{len(answer.data):,} bytes came in place of {wanted:,}")
            self.nbytes += wanted
            saturated = bool(self._waiting)
            self.limit.done(time.monotonic(), wanted, answer.latency, answer.body, saturated=saturated)
            return answer
        finally:
            self._leave()

    async def _enter(self) -> None:
        # First come, first served: records are requested in the order in which they are needed.
        if self._under_way >= self.limit.now or self._waiting:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave()
                raise
        else:
            self._under_way += 1

    def _leave(self) -> None:
        self._under_way -= 1
        while self._waiting and self._under_way < self.limit.now:
            turn = self._waiting.popleft()
            if not turn.done():
                self._under_way += 1
                turn.set_result(None)


def forked() -> bool:
    """Whether obstore's threads may belong to a parent of this process: it can't be used here."""
    return _forked


def _note_fork() -> None:
    global _forked
    _forked = _forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)
