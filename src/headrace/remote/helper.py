"""Requests for a forked process, made by a process of its own.

obstore waits in threads that fork doesn't copy: in a child forked from a process that uses it, a request
would never end. Such a child starts `python -m headrace.remote.helper`, asks it through a pipe, and is
answered through another. The helper ends when the child does.

A frame is its length in 8 bytes and a pickle. The first one is (URL of the store, options); then come
(number, method, arguments), answered by (number, Answer or `Failed`).
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from headrace.remote.client import Answer, ObstoreClient, StoreError

LENGTH = struct.Struct("<Q")


class Failed(NamedTuple):
    """An error: the name of its class, and its text."""

    kind: str
    text: str


def framed(message: Any) -> bytes:
    """`message` as it goes through a pipe."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises asyncio.IncompleteReadError at the end."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


class HelperClient:
    """A `Client` that asks a helper, started at the first request."""

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self._first = framed((root, dict(options)))
        self._starting: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._listening: asyncio.Task[None] | None = None

    async def get(self, name: str, start: int, stop: int | None) -> Answer:
        """See `Client`."""
        return await self._ask("get", name, start, stop)

    async def head(self, name: str) -> Answer:
        """See `Client`."""
        return await self._ask("head", name)

    async def _ask(self, method: str, *arguments: Any) -> Answer:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        try:
            helper = await asyncio.shield(self._starting)
        except OSError:  # no room for another process now: the next try may find some
            self._starting = None
            raise
        self._number += 1
        number = self._number
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            assert helper.stdin is not None
            helper.stdin.write(framed((number, method, arguments)))
            await helper.stdin.drain()
            result = await answer
        finally:
            self._answers.pop(number, None)
        if isinstance(result, Failed):
            raise StoreError(result.kind, result.text)
        return Answer(*result)

    async def _start(self) -> asyncio.subprocess.Process:
        helper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Not from the current folder, which may be one of data (from Python 3.11 on).
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
        )
        assert helper.stdin is not None
        helper.stdin.write(self._first)
        self._listening = asyncio.create_task(self._listen(helper))
        return helper

    async def _listen(self, helper: asyncio.subprocess.Process) -> None:
        assert helper.stdout is not None
        try:
            while True:
                number, result = await receive(helper.stdout)
                future = self._answers.get(number)
                if future is not None and not future.done():
                    future.set_result(result)
        except Exception as error:  # its end, or what can't be understood: nobody may wait for more
            # The next request starts another one.
            self._starting = None
            for future in self._answers.values():
                if not future.done():
                    future.set_result(Failed("HelperError", f"the helper process ended ({error!r})"))
            with suppress(ProcessLookupError):
                helper.kill()
            await helper.wait()


async def serve() -> None:
    """Answers what comes in by stdin, until its end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    root, options = await receive(reader)
    client = ObstoreClient(root, options)
    tasks: set[asyncio.Task[None]] = set()

    async def answer(number: int, method: str, arguments: tuple[Any, ...]) -> None:
        result: tuple[Any, ...]
        try:
            given: Answer = await getattr(client, method)(*arguments)
            result = given._replace(data=bytes(given.data))
        except Exception as error:
            result = Failed(type(error).__name__, str(error))
        writer.write(framed((number, result if isinstance(result, Failed) else tuple(result))))
        await writer.drain()

    while True:
        try:
            message = await receive(reader)
        except asyncio.IncompleteReadError:
            return
        task = asyncio.create_task(answer(*message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


if __name__ == "__main__":
    # Ctrl-C is for the process that asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from headrace.remote import helper

    # By its name: who is answered finds no `Failed` in a __main__ of its own.
    asyncio.run(helper.serve())
