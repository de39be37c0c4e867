"""Python programs in processes of their own that need not import torch first.

A fresh interpreter takes some six seconds of CPU until torch, torchvision and Headrace are imported. Here one
is kept that has done so, and each program is run by a fork of it: `start_python` for `subprocess.Popen`,
`run_python` for `subprocess.run`. A program sees what it would see in a fresh interpreter, but for imported
modules and the interpreter's flags; tests of those start their own interpreter.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import types
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

# Room for a program with its environment.
REQUEST_BYTES = 1 << 20


class PythonProcess:
    """A running program; used as `subprocess.Popen`, whose attributes it has."""

    def __init__(
        self, pid: int, status: socket.socket, stdin: IO[str] | None, stdout: IO[str] | None
    ) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None
        self._status = status

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(self._status.recv(100))
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: str = "", timeout: float | None = None) -> str:
        if self.stdin is not None:
            self.stdin.write(text)
            self.stdin.close()
        said = ""
        if self.stdout is not None:
            with self.stdout:
                said = self.stdout.read()
        self.wait(timeout)
        return said

    def close(self) -> None:
        """Ends it at once, and closes the pipes."""
        self.kill()
        self.wait()
        for pipe in (self.stdin, self.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


def start_python(
    program: str | Path,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    stdin: int | None = None,
    stdout: int | IO[Any] | None = None,
    stderr: int | IO[Any] | None = None,
    teardown: bool = False,
    fresh: bool = False,
) -> PythonProcess:
    """Starts `python -c PROGRAM ARGUMENTS`, or `python PROGRAM ARGUMENTS` where the program is a path.

    Args:
        teardown: end as an interpreter does, which takes another second: modules are torn down after the
            `atexit` handlers, and what they hold is finalized.
        fresh: Headrace is not imported yet, only torch and torchvision are, and triton can be imported.
    """
    request = {
        "text": program.read_text() if isinstance(program, Path) else program,
        "path": str(program.absolute()) if isinstance(program, Path) else None,
        "arguments": [str(one) for one in arguments],
        "env": dict(os.environ if env is None else env),
        "cwd": str(Path.cwd()),
        "teardown": teardown,
        "fresh": fresh,
    }
    input_pipe: IO[str] | None = None
    output_pipe: IO[str] | None = None
    if stdin == subprocess.PIPE:
        input_fd, writing = os.pipe()
        input_pipe = open(writing, "w", buffering=1)  # noqa: SIM115
    else:
        input_fd = os.open(os.devnull, os.O_RDONLY)
    if stdout == subprocess.PIPE:
        reading, output_fd = os.pipe()
        output_pipe = open(reading)  # noqa: SIM115
    else:
        output_fd = os.dup(_fd(stdout, 1))
    errors_fd = os.dup(output_fd if stderr == subprocess.STDOUT else _fd(stderr, 2))
    theirs = [input_fd, output_fd, errors_fd]
    status, their_status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with their_status:
        socket.send_fds(_prepared(), [json.dumps(request).encode()], [*theirs, their_status.fileno()])
    for fd in theirs:
        os.close(fd)
    return PythonProcess(int(status.recv(100)), status, input_pipe, output_pipe)


def _fd(file: int | IO[Any] | None, default: int) -> int:
    if file is None:
        return default
    return file if isinstance(file, int) else file.fileno()


def run_python(
    program: str | Path,
    *arguments: object,
    env: Mapping[str, str] | None = None,
    timeout: float = 240,
    check: bool = False,
    teardown: bool = False,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end, as `subprocess.run(…, capture_output=True, text=True)` does."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start_python(
            program, *arguments, env=env, stdout=out, stderr=err, teardown=teardown, fresh=fresh
        )
        try:
            process.wait(timeout)
        finally:
            process.kill()
        out.seek(0)
        err.seek(0)
        done = subprocess.CompletedProcess(
            [str(program), *map(str, arguments)], process.wait(), out.read(), err.read()
        )
    if check and done.returncode != 0:
        sys.stderr.write(done.stderr)
        done.check_returncode()
    return done


@functools.cache
def _prepared() -> socket.socket:
    """The connection to the interpreter that is forked."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        fd = theirs.fileno()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # it must have no other thread when it forks
        process = subprocess.Popen(
            [sys.executable, __file__, str(fd)], pass_fds=[fd], stdin=subprocess.DEVNULL, env=environment
        )

    owner = os.getpid()

    def end() -> None:
        if os.getpid() == owner:  # not in a fork of the tests' process
            ours.close()
            process.wait()

    atexit.register(end)
    return ours


def _serve(connection: socket.socket) -> dict[str, Any] | None:
    """Forks for each request. Returns it in the child, or None at the end, in the process that was forked."""
    # By the descriptor of a child: its process, and where its end is reported.
    running: dict[int, tuple[int, int]] = {}
    while True:
        ready, _, _ = select.select([connection.fileno(), *running], [], [])
        for ended in set(ready) - {connection.fileno()}:
            pid, status = running.pop(ended)
            os.write(status, b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
            os.close(status)
            os.close(ended)
        if connection.fileno() not in ready:
            continue
        data, fds, _, _ = socket.recv_fds(connection, REQUEST_BYTES, 4)
        if not data:
            return None
        *standard, status = fds
        assert len(os.listdir("/proc/self/task")) == 1, "threads would be missing after a fork"
        pid = os.fork()
        if pid == 0:
            connection.close()
            for number, fd in enumerate(standard):
                os.dup2(fd, number)
            for fd in (*standard, status, *running, *(each for _, each in running.values())):
                os.close(fd)
            request: dict[str, Any] = json.loads(data)
            return request
        for fd in standard:
            os.close(fd)
        os.write(status, b"%d" % pid)
        running[os.pidfd_open(pid)] = (pid, status)


def _become(request: dict[str, Any]) -> None:
    """Makes this process what it would be, had it been started for the program; and runs that."""
    import numpy as np

    np.random.seed()
    if request["fresh"]:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("headrace", "triton")]:
            del sys.modules[name]
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    path = request["path"]
    sys.argv = [path or "-c", *request["arguments"]]
    sys.path.insert(0, str(Path(path).parent) if path else "")
    main = types.ModuleType("__main__")
    if path:
        main.__file__ = path
    sys.modules["__main__"] = main
    exec(compile(request["text"], path or "<string>", "exec"), main.__dict__)


class _End:
    """The last of the `atexit` handlers, which ends the process before modules are torn down."""

    def __init__(self) -> None:
        self.code, self.at_once = 0, True
        atexit.register(self)

    def __call__(self) -> None:
        if not self.at_once:
            return
        sys.stdout.flush()
        sys.stderr.flush()
        if self.code < 0:
            signal.signal(-self.code, signal.SIG_DFL)
            os.kill(os.getpid(), -self.code)
        os._exit(self.code)


def _code(error: BaseException) -> int:
    """The exit code of a program that ends with an exception."""
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    if not isinstance(error, SystemExit):
        return 1
    return error.code if isinstance(error.code, int) else int(error.code is not None)


if __name__ == "__main__":
    # Not this folder, whose modules have names that others may have, too: its parent, for `import support.…`.
    sys.path.append(str(Path(sys.path.pop(0)).parent))
    end = _End()  # registered before all others, and called after them

    # Frozen objects aren't looked through at the end of a fork. Triton would report its own as leaked then.
    sys.modules["triton"] = None  # type: ignore[assignment]
    import torchvision.transforms.v2  # noqa: F401

    import headrace.loader  # noqa: F401

    gc.freeze()
    received = _serve(socket.socket(fileno=int(sys.argv[1])))
    if received is not None:
        end.at_once = not received["teardown"]
        try:
            _become(received)
        except BaseException as error:
            end.code = _code(error)
            raise
