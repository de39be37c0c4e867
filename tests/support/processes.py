"""Processes of a session."""

from __future__ import annotations

import os
from pathlib import Path


def processes_of(session: int) -> list[int]:
    """Processes of a session, zombies left out."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry))
    return found
