"""Requests for a forked process, made by a process of its own.

obstore waits in threads that fork doesn't copy: in a child forked from a process that uses it, a request
would never end. Such a child starts `python -m headrace.remote.helper`, and exchanges requests and answers
with it through pipes. The helper ends when the child does.

A frame is its length in 8 bytes and a pickle. The first one is (URL of the store, options); then come
(number, method, arguments), answered by (number, the fields of an `Answer`, None) or (number, None, the
arguments of a `StoreError`): no classes of this module, whose name is another one where it is run.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import struct
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from headrace.remote.client import Answer, ObstoreClient, StoreError
from headrace.remote.loop import loop

LENGTH = struct.Struct("<Q")
ENDED = "the helper process ended"


def framed(message: Any) -> bytes:
    """`message` as it goes through a pipe."""
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises asyncio.IncompleteReadError at the end."""
    (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
    return pickle.loads(await reader.readexactly(length))


class HelperClient:
    """An `ObstoreClient` in a helper, which is started at the first request."""

    def __init__(self, root: str, options: Mapping[str, Any]) -> None:
        self._first = framed((root, dict(options)))
        self._starting: asyncio.Task[asyncio.subprocess.Process] | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._listening: asyncio.Task[None] | None = None

    async def get(self, name: str, start: int, stop: int | None) -> Answer:
        """See `ObstoreClient`."""
        return await self._request("get", name, start, stop)

    async def head(self, name: str) -> Answer:
        """See `ObstoreClient`."""
        return await self._request("head", name)

    async def _request(self, method: str, *arguments: Any) -> Answer:
        if self._starting is None:
            self._starting = asyncio.create_task(self._start())
        try:
            helper = await asyncio.shield(self._starting)
        except OSError:  # no room for another process now: the next attempt may find some
            self._starting = None
            raise
        self._number += 1
        number = self._number
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            assert helper.stdin is not None
            if self._listening is None or self._listening.done():
                raise StoreError("HelperError", ENDED)
            helper.stdin.write(framed((number, method, arguments)))
            await helper.stdin.drain()
            given, failed = await answer
        finally:
            self._answers.pop(number, None)
        if failed is not None:
            raise StoreError(*failed)
        return Answer(*given)

    async def _start(self) -> asyncio.subprocess.Process:
        helper = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            __name__,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            # Not from the current folder, which may be one of data (from Python 3.11 on).
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                "PYTHONSAFEPATH": "1",
            },
        )
        assert helper.stdin is not None
        helper.stdin.write(self._first)
        self._listening = asyncio.create_task(self._listen(helper))
        return helper

    async def _listen(self, helper: asyncio.subprocess.Process) -> None:
        assert helper.stdin is not None
        assert helper.stdout is not None
        try:
            while True:
                number, *result = await receive(helper.stdout)
                future = self._answers.get(number)
                if future is not None and not future.done():
                    future.set_result(result)
        except Exception as error:  # its end, or what can't be understood: nobody may wait for more
            # The next request starts another one.
            self._starting = None
            helper.stdin.close()
            for future in self._answers.values():
                if not future.done():
                    future.set_result((None, ("HelperError", f"{ENDED} ({error!r})")))
            with suppress(ProcessLookupError):
                helper.kill()
            await helper.wait()


def serve() -> None:
    """Answers what comes in by stdin, until its end."""
    writing = threading.Lock()

    def read() -> Any:
        (length,) = LENGTH.unpack(sys.stdin.buffer.read(LENGTH.size))
        return pickle.loads(sys.stdin.buffer.read(length))

    def reply(number: int, done: Future[Answer]) -> None:
        error = done.exception()
        if error is None:
            answer = done.result()
            message = memoryview(framed((number, tuple(answer._replace(data=bytes(answer.data))), None)))
        else:
            failure = getattr(error, "kind", type(error).__name__), str(error)
            message = memoryview(framed((number, None, failure)))
        with writing, suppress(BrokenPipeError):  # the other process has ended, and so will this one
            while message:
                message = message[os.write(1, message) :]

    client = ObstoreClient(*read())
    with suppress(struct.error, EOFError, pickle.UnpicklingError):  # the end of stdin
        while True:
            number, method, arguments = read()
            request: Future[Answer] = loop().start(getattr(client, method)(*arguments))
            request.add_done_callback(partial(reply, number))


if __name__ == "__main__":
    # Ctrl-C is for the process that sends the requests.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve()
