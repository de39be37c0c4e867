"""The process that makes requests for a forked one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from headrace.remote.client import StoreError
from headrace.remote.helper import HelperClient


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


def test_what_cant_be_understood_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
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
