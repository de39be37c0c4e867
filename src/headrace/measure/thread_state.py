"""What a thread of this process does at the moment, as Linux tells it."""

from __future__ import annotations

import os
import platform

from headrace.measure.stages import Blocked

# System calls in which a thread waits for data that it asked for, by architecture: read, pread64, readv,
# preadv, preadv2, open, openat, openat2, stat, fstat, lstat, newfstatat, statx, getdents, getdents64, access,
# faccessat, readlink, readlinkat, recvfrom, recvmsg, recvmmsg, sendfile, copy_file_range, io_getevents,
# io_uring_enter. As in Linux' arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
READING = {
    "x86_64": "0 17 19 295 327 2 257 437 4 5 6 262 332 78 217 21 269 89 267 45 47 299 40 326 208 426",
    "aarch64": "63 67 65 69 286 56 437 79 80 291 61 48 78 207 212 243 71 285 4 426",
}
SLEEPING = {"x86_64": "35 230", "aarch64": "101 115"}  # nanosleep, clock_nanosleep
FUTEX = {"x86_64": "202 449 455", "aarch64": "98 449 455"}  # futex, futex_waitv, futex_wait


def call_table(machine: str) -> dict[bytes, Blocked]:
    """What a thread is doing in a system call, by the call's number; numbers not in it: "waiting"."""
    table: dict[bytes, Blocked] = {number.encode(): "reading" for number in READING.get(machine, "").split()}
    table.update({number.encode(): "sleeping" for number in SLEEPING.get(machine, "").split()})
    table.update({number.encode(): "futex" for number in FUTEX.get(machine, "").split()})
    # Blocked outside of a system call: a page fault, as of a memory-mapped file.
    table[b"-1"] = "reading"
    return table


CALLS = call_table(platform.machine())
KNOWN_MACHINE = platform.machine() in READING


class ThreadState:
    """Tells what one thread does; holds a file of /proc open.

    Args:
        native_id: of the thread, which is of this process.
    """

    def __init__(self, native_id: int) -> None:
        self.native_id = native_id
        self._names_call = KNOWN_MACHINE
        self._file = self._open("syscall") if KNOWN_MACHINE else -1
        if self._file >= 0 and not self._reads():
            os.close(self._file)
            self._file = -1
        if self._file < 0:  # a kernel that doesn't tell the call, or tells it to the administrator alone
            self._names_call = False
            self._file = self._open("stat")

    def look(self) -> Blocked:
        """What it does. "running" too where the system tells nothing, and when it has ended."""
        if self._file < 0:
            return "running"
        try:
            text = os.pread(self._file, 400, 0)
        except OSError:
            return "running"
        if not self._names_call:
            return of_letter(text.rpartition(b")")[2][1:2])
        return of_call(text)

    def close(self) -> None:
        """Gives the file back."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self, name: str) -> int:
        try:
            return os.open(f"/proc/self/task/{self.native_id}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return -1

    def _reads(self) -> bool:
        try:
            return bool(os.pread(self._file, 20, 0))
        except OSError:
            return False


class Schedule:
    """How long a thread of this process has been on a core, and has waited for one.

    Args:
        native_id: of that thread.
    """

    def __init__(self, native_id: int) -> None:
        path = f"/proc/self/task/{native_id}/schedstat"
        # Kernels may be built without it.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if os.path.exists(path) else -1

    def delay(self) -> float:
        """Seconds that it has waited for a core since it began; 0 where it isn't known."""
        return self._seconds()[1]

    def used(self) -> float:
        """Seconds since it began in which it wasn't blocked; 0 where it isn't known."""
        return sum(self._seconds())

    def _seconds(self) -> tuple[float, float]:
        if self._file < 0:
            return 0.0, 0.0
        computed, waited, _ = os.pread(self._file, 100, 0).split()
        return int(computed) / 1e9, int(waited) / 1e9

    def close(self) -> None:
        """Gives the file back."""
        if self._file >= 0:
            os.close(self._file)


def of_call(text: bytes, calls: dict[bytes, Blocked] = CALLS) -> Blocked:
    """What /proc/…/syscall says: "running", or the number of the call and its arguments."""
    return "running" if text[:1] == b"r" else calls.get(text.split(b" ", 1)[0], "waiting")


def of_letter(letter: bytes) -> Blocked:
    """What the state in /proc/…/stat says."""
    return {b"R": "running", b"D": "reading"}.get(letter, "blocked")  # type: ignore[return-value]


def count_running(but: int) -> int:
    """Threads of this process that are on a core or wait for one, without the one with native id `but`."""
    running = 0
    for name in os.listdir("/proc/self/task"):
        if int(name) != but:
            text = _read(f"/proc/self/task/{name}/stat")
            running += text.rpartition(b")")[2][1:2] == b"R"
    return running


def run_delays() -> dict[int, float]:
    """Seconds that each thread of this process has waited for a core, by native id; empty if unknown."""
    delays = {}
    for name in os.listdir("/proc/self/task"):
        fields = _read(f"/proc/self/task/{name}/schedstat").split()
        if len(fields) == 3:
            delays[int(name)] = int(fields[1]) / 1e9
    return delays


def _read(path: str) -> bytes:
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""  # the thread has ended
    try:
        return os.read(file, 1024)
    except OSError:
        return b""
    finally:
        os.close(file)
