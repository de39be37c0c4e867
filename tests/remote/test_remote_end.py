"""The end of a process that reads from a store: at once, and without a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import object_stores as stores

# A thread that keeps the interpreter busy lets obstore's wait for it, one of them with the last result in
# hand; how long, the switch interval says. Six of ten such processes were aborted before the end waited.
SCRIPT = """
import sys, threading
from headrace.remote.client import ObstoreClient
from headrace.remote.loop import loop
def spin():
    while True: pass
sys.setswitchinterval(0.02)
threading.Thread(target=spin, daemon=True).start()
options = {"endpoint": sys.argv[1], "access_key_id": "a", "secret_access_key": "b", "region": "r"}
client = ObstoreClient("s3://bucket", options)
begun = [loop().start(client.get("name", 0, 1)) for _ in range(int(sys.argv[2]))]
if len(begun) == 1:
    assert begun[0].exception(60) is not None
"""


@pytest.mark.parametrize("requests", [1, 30])
def test_a_process_ends_by_itself_right_after_a_request_or_amid_many(requests: int) -> None:
    pytest.importorskip("obstore")
    nobody = f"http://127.0.0.1:{stores.free_port()}"
    source = str(Path(__file__).parents[2] / "src")
    for _ in range(5 if requests == 1 else 1):
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, nobody, str(requests)],
            env={**os.environ, "PYTHONPATH": source},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
