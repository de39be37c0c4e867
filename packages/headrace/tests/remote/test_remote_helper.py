"""Requests of a forked process, which another one makes: answers, errors and the end of that one arrive."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.remote.client import Answer, StoreError
from headrace.remote.helper import HelperClient
from headrace.remote.loop import loop
from support.object_stores import PATIENCE, Proxy


@pytest.fixture
def client(options: dict[str, Any]) -> HelperClient:
    return HelperClient("s3://bucket", options)


def get(client: HelperClient, name: str = "pack/index.arrow", stop: int = 100) -> Answer:
    return loop().start(client.get(name, 0, stop)).result(PATIENCE)


def test_errors_keep_their_kind_and_later_requests_succeed(client: HelperClient, proxy: Proxy) -> None:
    assert len(get(client).data) == 100
    with pytest.raises(StoreError, match="not found") as caught:
        get(client, "pack/nothing")
    assert caught.value.kind == "FileNotFoundError"
    proxy.behave = lambda request: "503"
    with pytest.raises(StoreError, match="status code: 503") as caught:
        loop().start(client.head("pack/index.arrow")).result(PATIENCE)
    assert caught.value.kind == "GenericError"
    proxy.behave = lambda request: ""
    assert len(get(client).data) == 100


def test_a_helper_that_is_killed_is_an_error_and_another_one_starts(
    client: HelperClient, proxy: Proxy
) -> None:
    first = bytes(get(client).data)
    proxy.behave = lambda request: "stall"
    waiting = loop().start(client.get("pack/index.arrow", 0, 50))
    assert client._starting is not None
    helper = client._starting.result()
    os.kill(helper.pid, signal.SIGKILL)
    with pytest.raises(StoreError, match="the helper process ended"):
        waiting.result(PATIENCE)
    proxy.behave = lambda request: ""
    assert bytes(get(client).data) == first


def test_an_unreadable_answer_is_an_error_and_another_helper_starts(
    client: HelperClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(get(client).data) == 100

    async def garbled(reader: asyncio.StreamReader) -> Any:
        await reader.readexactly(1)
        raise ValueError("this isn't a pickle")

    async def again() -> Answer:
        monkeypatch.setattr("headrace.remote.helper.receive", garbled)
        return await client.get("pack/index.arrow", 0, 10)

    # The first answer after that is read as before.
    assert len(loop().start(again()).result(PATIENCE).data) == 10
    with pytest.raises(StoreError, match="the helper process ended"):
        get(client)
    monkeypatch.undo()
    assert len(get(client).data) == 100


def test_one_that_couldnt_be_started_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = 0

    async def no_room(*command: str, **options: object) -> None:
        nonlocal tries
        tries += 1
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", no_room)

    async def ask_twice() -> None:
        client = HelperClient("s3://bucket", {})
        for _ in range(2):
            with pytest.raises(BlockingIOError):
                await client.head("x")

    asyncio.run(ask_twice())
    assert tries == 2


def test_an_incomprehensible_answer_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And not waited for."""
    program = tmp_path / "python"
    program.write_text(
        "#!/bin/sh\nhead -c 1 > /dev/null\nprintf '\\001\\0\\0\\0\\0\\0\\0\\0?'\ncat > /dev/null\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))

    async def ask() -> None:
        client = HelperClient("s3://bucket", {})
        with pytest.raises(StoreError, match="helper process ended"):
            await client.head("x")
        assert client._starting is None
        assert client._listening is not None
        await client._listening

    asyncio.run(asyncio.wait_for(ask(), 60))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 can't be told to")
def test_it_runs_nothing_out_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    (tmp_path / "asyncio.py").write_text("raise SystemExit('code out of data')")
    monkeypatch.chdir(tmp_path)

    async def ask() -> None:
        client = HelperClient("http://127.0.0.1:1", {"client_options": {"timeout": "5s"}})
        with pytest.raises(StoreError) as caught:
            await client.head("x")
        assert caught.value.kind != "HelperError", "it has ended"
        assert "127.0.0.1:1" in str(caught.value), "what the store's library said"
        assert client._starting is not None
        assert client._listening is not None
        (await client._starting).kill()
        await client._listening

    asyncio.run(ask())
