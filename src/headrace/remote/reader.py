"""Requests to one store: as many at a time as pay, tried again where they fail, and counted."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.errors import RemoteError
from headrace.remote.client import RETRY, Answer, Client, ObstoreClient
from headrace.remote.failures import Failure
from headrace.remote.helper import HelperClient
from headrace.remote.limit import Limit
from headrace.remote.retry import Retry

# Whether this process was forked from one that may use obstore, whose threads don't exist here.
_forked = False


@dataclass
class Counts:
    """What a reader did.

    Attributes:
        requests: sent, further tries included.
        retries: of these, the further tries.
        nbytes: received by requests that succeeded.
    """

    requests: int = 0
    retries: int = 0
    nbytes: int = 0


class Reader:
    """Reads from one store; for coroutines of `headrace.remote.loop`, of the process that made it.

    Args:
        root: URL of the store.
        options: see `headrace.PackedDataset`.
        client: in place of obstore; for tests.
    """

    def __init__(self, root: str, options: Mapping[str, Any], client: Client | None = None) -> None:
        self.root = root
        self.limit = Limit()
        self.counts = Counts()
        self.retry = Retry.from_options(options.get(RETRY))
        self._client = client if client is not None else _client(root, options)
        self._under_way = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        # Not the generators of the process, which are the user's.
        self._random = random.Random(os.urandom(8))

    @property
    def under_way(self) -> int:
        """Requests now."""
        return self._under_way

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
            self.counts.retries += 1
            await asyncio.sleep(self.retry.wait(failed, self._random))

    async def _once(self, name: str, start: int, stop: int | None, *, head: bool) -> Answer:
        await self._enter()
        try:
            self.counts.requests += 1
            answer = await (self._client.head(name) if head else self._client.get(name, start, stop))
            wanted = 0 if head else (answer.size if stop is None else stop) - start
            if len(answer.data) != wanted:
                raise OSError(f"{len(answer.data):,} bytes came in place of {wanted:,}")
            self.counts.nbytes += wanted
            self.limit.done(
                time.monotonic(), wanted, answer.latency, answer.body, saturated=bool(self._waiting)
            )
            return answer
        finally:
            self._leave()

    async def _enter(self) -> None:
        # First come, first served: records are asked for in the order that they are needed in.
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


def _client(root: str, options: Mapping[str, Any]) -> Client:
    """What this process reads with. Raises ConfigError."""
    return HelperClient(root, options) if _forked else ObstoreClient(root, options)


def _note_fork() -> None:
    global _forked
    _forked = _forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)
