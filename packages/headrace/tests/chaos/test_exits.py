"""However a program ends in the middle of an epoch, it ends, says nothing and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headrace.export.live import jobs
from support.jpegs import image_folder
from support.processes import processes_of
from support.python import start_python

PROGRAM = Path(__file__).with_name("exits.py")
SECONDS = 280.0  # spawned workers import torch, on a machine that may be busy
SETTLE_SECONDS = 60.0
NO_FORK_AT_THE_END = "Python 3.12 and newer refuse to fork once the interpreter ends"
# The exit code of each way to end.
WAYS = {
    "end": 0,
    "sys.exit": 3,
    "exception": 1,
    "SIGINT": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
    "os._exit": 4,
    "thread": 0,
    "daemon thread": 0,
    "atexit": 0,
    "fork": 0,
}
NATIVE = ("native", "native, caller", "thread", "gather", "caller")
PROCESSES = ("process", "kept", "unknown", "stream")
METHODS = ("fork", "spawn", "forkserver")
LAST_LINES = {"exception": "LeavingError", "SIGINT": "KeyboardInterrupt"}
# Of a process that nobody gave the time to clean up; multiprocessing's own folder for its sockets.
KILLED, SOCKETS = ("SIGTERM", "os._exit"), "pymp-"
DEFAULT = {
    ("end", "kept", "fork"),
    ("end", "native", "none"),
    ("sys.exit", "stream", "fork"),
    ("exception", "unknown", "fork"),
    ("SIGINT", "process", "fork"),
    ("SIGTERM", "kept", "fork"),
    ("os._exit", "process", "fork"),
    ("thread", "thread", "none"),
    ("daemon thread", "process", "fork"),
    ("daemon thread", "gather", "none"),
    ("daemon thread", "thread", "none"),
    ("atexit", "process", "fork"),
    ("fork", "native", "none"),
    ("fork", "kept", "fork"),
}


def cases() -> Iterator[object]:
    for way in WAYS:
        for kind in (*NATIVE, *PROCESSES):
            for method in METHODS if kind in PROCESSES else ("none",):
                marks = [] if (way, kind, method) in DEFAULT else [pytest.mark.long, pytest.mark.slow]
                if (way, method) == ("atexit", "fork"):
                    marks.append(pytest.mark.skipif(sys.version_info >= (3, 12), reason=NO_FORK_AT_THE_END))
                yield pytest.param(way, kind, method, marks=marks)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), 60, side=48)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short name, as those of sockets may have 107 characters."""
    with TemporaryDirectory(prefix="exits-", ignore_cleanup_errors=True) as name:
        yield Path(name)


def settled(condition: Callable[[], bool]) -> bool:
    """Returns whether it comes true: processes take a moment to end."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.mark.timeout(int(SECONDS + 2 * SETTLE_SECONDS))
@pytest.mark.parametrize(("way", "kind", "method"), [*cases()])
def test_nothing_is_left_of_a_program_that_ends_in_mid_epoch(
    way: str, kind: str, method: str, folder: Path, temporary: Path, tmp_path: Path
) -> None:
    # torch itself leaves the folder of its compiler.
    compiled = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    environment = {**os.environ, **compiled, "TMPDIR": str(temporary)}
    with open(tmp_path / "errors", "w+") as errors:
        process = start_python(
            PROGRAM,
            way,
            kind,
            method,
            folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            teardown=True,
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n", Path(errors.name).read_text()
            members = processes_of(process.pid)
            if way == "SIGINT":
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
            elif way == "SIGTERM":
                os.kill(process.pid, signal.SIGTERM)
            else:
                process.stdin.write("\n")
            code = process.wait(SECONDS)
            ended = settled(lambda: not processes_of(process.pid))
            left = processes_of(process.pid)
            printed = process.stdout.read()
        finally:
            for pid in processes_of(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.close()
        errors.seek(0)
        complaints = errors.read()

    assert code == WAYS[way], complaints
    assert ended, f"processes are left: {left}"
    assert printed == ""
    check_complaints(complaints, LAST_LINES.get(way))
    assert not [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in members)]
    assert not set(members) & {job.pid for job in jobs()}
    files = [name for name in os.listdir(temporary) if not (way in KILLED and name.startswith(SOCKETS))]
    assert files == []


def check_complaints(text: str, last: str | None) -> None:
    """Nothing but the traceback that ends with `last`."""
    if last is None:
        assert text == ""
        return
    assert last in text.splitlines()[-1]
    assert text.count("Traceback (most recent call last)") == 1, text
    assert text.startswith("Traceback"), text


# What a script holds is finalized after modules were emptied.
HELD_BY_THE_SCRIPT = """
import sys
from torchvision import transforms
from torchvision.datasets import ImageFolder
import headrace

folder, kind = sys.argv[1:]
transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])
dataset = ImageFolder(folder, transform) if kind == "native" else list(range(100))
loader = headrace.DataLoader(
    dataset, 4, num_workers=1, worker_kind="thread" if kind == "thread" else "process"
)
batches = iter(loader)
next(batches)
"""


@pytest.mark.parametrize("kind", ["native", "process", "thread"])
def test_a_script_that_holds_an_iterator_prints_nothing_at_its_end(kind: str, tmp_path: Path) -> None:
    image_folder(tmp_path, 40)
    command = [sys.executable, "-c", HELD_BY_THE_SCRIPT, str(tmp_path), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
