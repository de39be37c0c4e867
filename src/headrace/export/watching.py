"""The other end of `headrace.export.live`: which jobs answer, and what they say."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headrace.errors import ConfigError
from headrace.export.live import FORMAT, address, peer

Json = dict[str, Any]
SOCKETS = Path("/proc/net/unix")
# A job whose threads hold the interpreter answers late; one that was stopped, not at all.
PATIENCE = 3.0
# An answer is a few kilobytes.
MOST_BYTES = 4_000_000


class Job:
    """A process of this user's that can be asked.

    Attributes:
        pid: as it is seen from here.
        name: of its socket.
    """

    def __init__(self, pid: int, name: str) -> None:
        self.pid = pid
        self.name = name

    def ask(self) -> Json | None:
        """What its loaders have counted; see `headrace.export.figures`. None: it is gone, or doesn't
        answer.

        Raises:
            ConfigError: another version of Headrace answers.
        """
        try:
            with _connected(self.name) as connection:
                if peer(connection)[1] != os.geteuid():
                    return None
                with connection.makefile("rb") as answer:
                    line = answer.readline(MOST_BYTES)
        except OSError:
            return None
        if not line.endswith(b"\n"):
            return None
        said: Json = json.loads(line)
        if said.get("format") != FORMAT:
            raise ConfigError(
                f"process {self.pid} runs another version of Headrace, whose figures this one doesn't know."
                " Use the headrace command of its own environment."
            )
        return said


def jobs(known: Mapping[str, Job] = MappingProxyType({})) -> list[Job]:
    """This user's processes that can be asked now, by their number. One that has ended isn't among them.

    Args:
        known: found earlier, by name: they need not be looked at again.
    """
    own = address(os.geteuid()).replace("\0", "@")
    fields = [line.split() for line in SOCKETS.read_text().splitlines()]
    # Connections that were accepted bear the name of the socket that listens.
    names = {field[-1].replace("@", "\0", 1) for field in fields if field and field[-1].startswith(own)}
    found = [known[name] for name in names & known.keys()]
    for name in names - known.keys():
        try:
            with _connected(name) as connection:
                pid, uid = peer(connection)
        except OSError:
            continue  # it has ended just now
        if uid == os.geteuid() and pid:
            found.append(Job(pid, name))
    return sorted(found, key=lambda job: job.pid)


def _connected(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(PATIENCE)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection
