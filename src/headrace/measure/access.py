"""Why this process may not read something."""

from __future__ import annotations

import os
import pwd
import stat


def refusal(path: str, error: OSError) -> str:
    """The system's message for `path`, and who is allowed: ``Permission denied: drwx------ of ann (uid 1000),
    group 1000; this process is bob (uid 1001)``."""
    reason = error.strerror or str(error)
    try:
        return f"{reason}: {who_may(os.stat(path))}"
    except OSError:
        return reason  # what is above it is closed too, or it is gone


def who_may(info: os.stat_result) -> str:
    """Mode and owner of a file, and who this process is."""
    return (
        f"{stat.filemode(info.st_mode)} of {_user(info.st_uid)}, group {info.st_gid}; this process is"
        f" {_user(os.geteuid())}"
    )


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
