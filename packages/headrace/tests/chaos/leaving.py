"""Epochs that are left in all ways there are, over loaders of all kinds: what stays behind?

python leaving.py --loops 1000 [--seed 0]
python leaving.py --each                   (each way of each kind, by each way to start processes)

A process that never makes a loader forks one session after the other. Each makes a few loaders, reads up to
three batches and leaves: by break, exception, del, a fork in the middle; the last time by its own end, with
or without a daemon thread that is in an epoch, or by Ctrl-C in the middle of an epoch. Within a session
threads, descriptors, processes and memory for batches must go back to what they were; after it no process of
its own and nothing in /dev/shm may be left, and it must have printed nothing. A session that takes longer
than a minute hangs.

Prints JSON, and exits with 0 if all was well.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info
from torchvision import transforms
from torchvision.datasets import ImageFolder

sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "tests"))

import headrace
from support.jpegs import image_folder
from support.processes import processes_of
from support.unknown import Jitter

PICTURES, BATCH = 24, 3
BATCHES = PICTURES // BATCH
HANG_SECONDS = 60.0
SETTLE_SECONDS = 30.0
WAYS = ("break", "exception", "del", "fork")
LAST_WAYS = ("exit", "daemon thread", "ctrl-c")
PROCESSES = ("unknown", "process", "kept", "stream")
KINDS = ("native", "native, caller", "thread", "caller", "gather", *PROCESSES)
EACH = (*KINDS, *(f"{kind}, {method}" for kind in PROCESSES for method in ("spawn", "forkserver")))


class Plain(Dataset[Any]):
    """Runs as Python."""

    def __len__(self) -> int:
        return PICTURES

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.001)
        return torch.rand(1000) + index


class Stream(IterableDataset[Any]):
    """The same in an order of its own, shared among workers."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return map(Plain().__getitem__, range(first, PICTURES, step))


class LeavingError(Exception):
    """How a loop is left."""


def make_loader(kind: str, folder: str) -> headrace.DataLoader:
    kind, _, where = kind.partition(", ")
    steps = [transforms.RandomResizedCrop(48), transforms.ToTensor()]
    if kind == "native":
        dataset: Any = ImageFolder(folder, transforms.Compose(steps))
    elif kind == "unknown":
        dataset = ImageFolder(folder, transforms.Compose([steps[0], Jitter(0.4), steps[1]]))
    elif kind == "gather":
        dataset = TensorDataset(torch.rand(PICTURES, 10))
    else:
        dataset = Stream() if kind == "stream" else Plain()
    options: dict[str, Any] = {"batch_size": BATCH, "seed": 1}
    options["num_workers"] = 0 if "caller" in (kind, where) else 2
    if where in ("spawn", "forkserver"):
        options["multiprocessing_context"] = where
    if kind in ("thread", "process"):
        options["worker_kind"] = kind
    if kind == "kept":
        options["persistent_workers"] = True
    return headrace.DataLoader(dataset, shuffle=kind != "stream", **options)


def leave(loader: headrace.DataLoader, way: str, batches: int) -> None:
    """Begins an epoch, reads up to that many batches, and leaves it."""
    iterator = iter(loader)
    for _ in range(batches):
        next(iterator)
    if way == "exception":
        raise LeavingError
    if way == "del":
        del iterator
    if way == "break":
        for _ in iterator:
            break
    if way == "fork":
        fork(lambda: in_child(loader, iterator, batches))
        for _ in iterator:
            pass


def in_child(loader: headrace.DataLoader, iterator: Any, batches: int) -> None:
    """In a process that was forked in the middle of an epoch."""
    try:
        rest = len(list(iterator))
    except RuntimeError as error:  # worker processes belong to the parent
        if "from which this one was forked" not in str(error):
            raise
        rest = BATCHES - batches
    assert rest == BATCHES - batches
    try:
        assert len(list(loader)) == BATCHES
    except headrace.ConfigError as error:  # multiprocessing's fork server belongs to the parent
        if "forked (os.fork)" not in str(error):
            raise


def fork(work: Callable[[], None]) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            for child in psutil.Process().children():  # nobody tells them that this ends
                child.kill()
            os._exit(code)
    ended = wait(pid, HANG_SECONDS)
    if ended is None:
        abort(pid)
    assert ended == 0, f"a child that was forked in the middle of an epoch: {ended or 'hangs'}"


def wait(pid: int, seconds: float) -> int | None:
    """The exit code of a child, or None if it hasn't ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    return None


def abort(pid: int) -> None:
    """Ends a child that hangs; faulthandler prints where."""
    os.kill(pid, signal.SIGABRT)
    if wait(pid, 5) is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def held() -> dict[str, int]:
    """What this process holds now."""
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "processes": len(processes_of(os.getpid())) - 1,
    }


def steady() -> dict[str, int]:
    """The same, once it doesn't change any more."""
    gc.collect()
    now: dict[str, int] = {}
    while now != (now := held()):
        time.sleep(0.1)
    return now


def settle(condition: Callable[[], bool]) -> bool:
    """Returns whether it comes true: threads and processes take a moment to end."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        gc.collect()
        time.sleep(0.005)
    return True


def session(chance: random.Random, folder: str, steps: list[tuple[str, str]], say: int) -> None:
    """The work of a forked process. It writes to the descriptor `say` what it does, a line for each loop, and
    "last" before the last."""
    # The first epoch of a process begins to listen for headrace top; the first fork of torch's workers sets
    # a handler of signals; spawning and the fork server keep a process.
    list(make_loader("native", folder))
    for where in {kind.partition(", ")[2] for kind, _ in steps if kind.startswith(PROCESSES)}:
        list(make_loader(f"process, {where}", folder))
    before = steady()
    for kind, way in steps[:-1]:
        batches = chance.randrange(4)
        os.write(say, f"{kind}: {way}\n".encode())
        loader = make_loader(kind, folder)
        for _ in range(chance.randrange(1, 3)):  # the same loader must be good for another epoch
            with suppress(LeavingError):
                leave(loader, way, batches)
        assert settle(lambda: loader.stats().in_flight == 0), f"{kind}: batches in flight after {way}"  # noqa: B023
        assert settle(lambda: loader.stats().memory_used == 0), f"{kind}: memory in use after {way}"  # noqa: B023
        del loader
        assert settle(lambda: all(n <= before[name] for name, n in held().items())), (
            f"left by {kind} after {way}: {before} has become {held()}: {os.listdir('/proc/self/task')}"
        )
    kind, way = steps[-1]
    os.write(say, f"{kind}: {way}\n".encode())
    loader = make_loader(kind, folder)
    iterator = iter(loader)
    for _ in range(chance.randrange(4)):
        next(iterator)
    if way == "daemon thread":
        threading.Thread(target=loop, args=(loader, iterator), daemon=True).start()
        time.sleep(chance.random() / 20)
    if way == "ctrl-c":
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.write(say, b"last\n")
        loop(loader, iterator)


def loop(loader: headrace.DataLoader, iterator: Any) -> None:
    """Epochs without end, the first of which has started."""
    while True:
        for _ in iterator:
            pass
        iterator = iter(loader)


class Session:
    """One, as the process that forks it sees it."""

    def __init__(
        self, chance: random.Random, folder: str, steps: list[tuple[str, str]], errors: Path
    ) -> None:
        self.steps, self.errors, self.said = steps, errors, b""
        self._hear, say = os.pipe()
        seed = chance.random()
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            os.close(self._hear)
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            session(random.Random(seed), folder, steps, say)
            sys.exit(0)  # as any script does
        os.close(say)
        os.set_blocking(self._hear, False)

    def faults(self, delay: float) -> list[str]:
        """Waits for its end; what was wrong."""
        code = self._end(delay)
        faults = []
        text = self.errors.read_text()
        if code is None:
            faults.append(f"it hangs\n{text}")
        elif self.steps[-1][1] != "ctrl-c" and (code != 0 or text):
            faults.append(f"exit code {code}\n{text}")
        elif self.steps[-1][1] == "ctrl-c" and (code != -signal.SIGINT or not _only_an_interrupt(text)):
            faults.append(f"exit code {code} after Ctrl-C\n{text}")
        if not settle(lambda: not processes_of(self.pid)):
            faults.append(f"processes left: {processes_of(self.pid)}")
        for pid in processes_of(self.pid):
            os.kill(pid, signal.SIGKILL)
        return [f"{self._last()}: {fault}" for fault in faults]

    def _end(self, delay: float) -> int | None:
        deadline = time.monotonic() + HANG_SECONDS * len(self.steps)
        while b"last\n" not in self.said and time.monotonic() < deadline:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self._listen()
            if found:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        time.sleep(delay)
        # A second time where the first fell into a finalizer, which swallows it.
        for _ in range(5):
            if processes_of(self.pid):
                os.killpg(self.pid, signal.SIGINT)  # as a terminal does it
            if (code := wait(self.pid, HANG_SECONDS / 5)) is not None:
                return code
        abort(self.pid)
        return None

    def _listen(self) -> None:
        try:
            self.said += os.read(self._hear, 65536)
        except BlockingIOError:
            return

    def _last(self) -> str:
        self._listen()
        os.close(self._hear)
        return self.said.decode().replace("last\n", "").strip().replace("\n", ", ")


def _only_an_interrupt(text: str) -> bool:
    """Whether what was printed are the tracebacks of Ctrl-C, of the session and of processes that it reached
    before they ran anything but multiprocessing's own start."""
    others = r"Exception in thread|Fatal|leaked|Aborted|multiprocessing/process\.py\", line \d+, in run\b"
    return text.rstrip().endswith("KeyboardInterrupt") and not re.search(others, text)


class Family:
    """All processes that are forked from this one, and from those: each notes its number in a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._before = path, set(os.listdir("/dev/shm"))
        notes = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.register_at_fork(after_in_child=lambda: os.write(notes, b"%d\n" % os.getpid()))

    def segments(self) -> set[str]:
        """What those of them that are gone left in /dev/shm."""
        members, found = set(self._path.read_text().split()), set()
        for name in set(os.listdir("/dev/shm")) - self._before:
            owner = re.match(r"(?:torch_|pym-|psm_)(\d+)", name)
            if owner and owner[1] in members and not os.path.exists(f"/proc/{owner[1]}"):
                found.add(name)
        return found


def drawn(chance: random.Random, loops: int) -> Iterator[list[tuple[str, str]]]:
    """The steps of sessions, each a kind of loader and the way its epochs are left: `loops` in all."""
    while loops > 0:
        ways = [chance.choice(WAYS) for _ in range(min(chance.randrange(1, 6), loops - 1))]
        yield [(chance.choice(KINDS), way) for way in (*ways, chance.choice(LAST_WAYS))]
        loops -= len(ways) + 1


def each() -> Iterator[list[tuple[str, str]]]:
    """Sessions that take each way of each kind."""
    for kind in EACH:
        yield [(kind, way) for way in (*WAYS, LAST_WAYS[0])]
        yield from ([(kind, way)] for way in LAST_WAYS[1:])


def run(loops: int | None, seed: int, scratch: Path) -> tuple[Counter[str], list[str]]:
    """How often each way was taken, and what was wrong. `loops`: None for each way of each kind."""
    folder = str(image_folder(scratch / "pictures", PICTURES, side=60))
    chance, family = random.Random(seed), Family(scratch / "processes")
    done: Counter[str] = Counter()
    faults: list[str] = []
    for steps in each() if loops is None else drawn(chance, loops):
        one = Session(chance, folder, steps, scratch / "errors")
        faults += one.faults(delay=chance.choice([0, 0.02, 0.2]) * chance.random())
        done.update(way for _, way in steps)
    if not settle(lambda: not family.segments()):
        faults.append(f"left in /dev/shm: {family.segments()}")
    return done, faults


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--loops", type=int, default=1000)
    parser.add_argument("--each", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    faulthandler.enable()
    # Forked children must find no threads of torch's.
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    start = time.monotonic()
    scratch, owner = tempfile.mkdtemp(), os.getpid()
    try:
        done, faults = run(None if given.each else given.loops, given.seed, Path(scratch))
    finally:
        if os.getpid() == owner:  # the end of a session comes through here, too
            shutil.rmtree(scratch)
    seconds = round(time.monotonic() - start, 1)
    report = {"loops": done.total(), **done, "seconds": seconds, "faults": faults}
    sys.stdout.write(json.dumps(report, indent=1) + "\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
