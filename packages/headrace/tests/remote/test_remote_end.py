"""The end of a process that reads from a store: at once, and without a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import object_stores as stores

CLIENT = """
import sys, threading, time
from headrace.sources.stores.client import Reader
from headrace.sources.stores.threads import requests
options = {"endpoint": sys.argv[1], "access_key_id": "a", "secret_access_key": "b", "region": "r"}
options["retry_config"] = {"max_retries": 1}
reader = Reader("s3://bucket", options)
def ask():
    try: reader.get("name", 0, 1)
    except Exception: pass
"""
# A thread that keeps the interpreter busy lets others wait for it, one of them with the last result in hand;
# how long, the switch interval says.
AMID_WORK = """
def spin():
    while True: pass
sys.setswitchinterval(0.02)
threading.Thread(target=spin, daemon=True).start()
if int(sys.argv[2]) == 1:
    requests.submit(ask).result()
for _ in range(int(sys.argv[2])):
    requests.start(ask)
"""
# The interpreter takes a second to end, in which requests begin and end.
AS_IT_ENDS = """
class Slow:
    def __del__(self, sleep=time.sleep): sleep(1)
kept = Slow()
for _ in range(30):
    requests.start(ask)
"""


def check_end(script: str, *arguments: str) -> None:
    """It ends by itself, and prints nothing."""
    pytest.importorskip("obstore")
    nobody = f"http://127.0.0.1:{stores.free_port()}"
    source = str(Path(__file__).parents[2] / "src")
    ended = subprocess.run(
        [sys.executable, "-c", CLIENT + script, nobody, *arguments],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("requests", [1, 30])
def test_a_process_ends_by_itself_right_after_a_request_or_amid_many(requests: int) -> None:
    for _ in range(5 if requests == 1 else 1):
        check_end(AMID_WORK, str(requests))


def test_a_process_ends_by_itself_while_requests_end() -> None:
    check_end(AS_IT_ENDS)
