"""deploy/entrypoint as a container starts it: under an arbitrary uid, in folders of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from support.object_stores import free_port

ROOT = Path(__file__).resolve().parents[2]
ENTRYPOINT = ROOT / "deploy" / "entrypoint"

# In no /etc/passwd, and without a home.
UID = 12345

# Seconds; what is waited for takes a few.
DEADLINE = 120


def as_arbitrary_user() -> list[str]:
    """Prefix of a command: a user namespace in which root is UID, without root's rights. Nothing if the tests
    aren't root's: their own uid is as good."""
    if os.geteuid() != 0:
        return []
    command = ["unshare", "--user", f"--map-user={UID}", "--map-group=0"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip("root, and unshare can't make a user namespace: no ordinary user to run as")
    return command


def wait_for(condition: Callable[[], bool], what: str, deadline: float = DEADLINE) -> None:
    end = time.monotonic() + deadline
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"after {deadline} s still waiting for {what}")
        time.sleep(0.05)


@dataclass
class Container:
    """Folders and environment that entrypoints share, as containers share a volume: `workspace` and `run` are
    /workspace and /run/headrace in the image, `bin` is first on the PATH."""

    folder: Path
    environment: dict[str, str] = field(init=False)
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workspace, self.run, self.bin = (self.folder / name for name in ("workspace", "run", "bin"))
        self.log = self.folder / "log"
        for folder in (self.workspace, self.run, self.bin):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o770)
        self.ports = {"jupyter": free_port(), "ssh": free_port()}
        self.environment = {
            "PATH": f"{self.bin}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "packages" / "headrace" / "src"),
            "HOME": "/",
            "HEADRACE_WORKSPACE": str(self.workspace),
            "HEADRACE_RUN": str(self.run),
            "JUPYTER_LISTEN": f"127.0.0.1:{self.ports['jupyter']}",
            "SSH_LISTEN": f"127.0.0.1:{self.ports['ssh']}",
        }

    def program(self, name: str, script: str) -> None:
        """Puts a shell script first on the PATH."""
        path = self.bin / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
        """The entrypoint, started; what it prints goes to `log`."""
        with open(self.log, "ab") as log:
            process = subprocess.Popen(
                [*as_arbitrary_user(), sys.executable, str(ENTRYPOINT), *arguments],
                env=self.environment | environment,
                cwd=self.workspace,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """The entrypoint, run to its end."""
        return subprocess.run(
            [*as_arbitrary_user(), sys.executable, str(ENTRYPOINT), *arguments],
            env=self.environment | environment,
            cwd=self.workspace,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )

    def serve(self, *names: str, **environment: str) -> subprocess.Popen[bytes]:
        """Servers, once they answer."""
        process = self.start(*names, **environment)

        def answers() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"it ended with {process.returncode}:\n{self.log.read_text()}")
            return self.running() and self.call("health").returncode == 0

        wait_for(answers, f"{names} to answer")
        return process

    def running(self) -> bool:
        """Servers were started, though they may not answer yet."""
        return (self.run / "services").exists()

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(DEADLINE)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
