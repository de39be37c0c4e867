"""Shows a folder again at another place, read-only, where all readers together get so many bytes per second.

    python benchmarks/stalls/slow_mount.py FOLDER PLACE --megabytes 8

What is read isn't kept in the page cache beyond the file's being open, as on a network mount. Needs Linux,
/dev/fuse, libfuse2 (Debian: libfuse2), `pip install fusepy`, and to be root or have fusermount.
"""

from __future__ import annotations

import argparse
import ctypes.util
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS_TO_MOUNT = 10.0


def missing() -> str:
    """Why it can't be mounted here; empty where it can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse is missing, or may not be opened by this user"
    if importlib.util.find_spec("fuse") is None:
        return "fusepy is not installed (pip install fusepy)"
    if ctypes.util.find_library("fuse") is None:
        return "libfuse2 is not installed (apt-get install libfuse2)"
    return ""


@contextmanager
def mounted(folder: Path, megabytes_per_second: float) -> Iterator[Path]:
    """A place where `folder` is seen through the throttle, until the block ends.

    Raises RuntimeError where mounting doesn't work within 10 s, with the server's own message.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-slow-") as place:
        command = [sys.executable, __file__, str(folder), place, "--megabytes", str(megabytes_per_second)]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            deadline = time.monotonic() + SECONDS_TO_MOUNT
            while not os.path.ismount(place):
                if server.poll() is not None or time.monotonic() > deadline:
                    server.kill()
                    raise RuntimeError(f"{folder} could not be mounted: {server.communicate()[1].strip()}")
                time.sleep(0.05)
            yield Path(place)
        finally:
            server.terminate()  # libfuse unmounts upon SIGTERM
            server.communicate()


def serve(folder: str, place: str, bytes_per_second: float) -> None:
    """Blocks until it is unmounted."""
    import fuse

    lock = threading.Lock()
    free = [0.0]  # when the line is free again: one for all readers

    class Throttled(fuse.Operations):
        def getattr(self, path: str, _fh: int | None = None) -> dict[str, Any]:
            status = os.lstat(folder + path)
            return {
                name: getattr(status, name)
                for name in ("st_mode", "st_size", "st_mtime", "st_nlink", "st_uid", "st_gid")
            }

        def readdir(self, path: str, _fh: int) -> list[str]:
            return [".", "..", *os.listdir(folder + path)]

        def open(self, path: str, flags: int) -> int:
            return os.open(folder + path, flags)

        def read(self, _path: str, size: int, offset: int, fh: int) -> bytes:
            data = os.pread(fh, size, offset)
            with lock:
                free[0] = max(free[0], time.monotonic()) + len(data) / bytes_per_second
                wait = free[0] - time.monotonic()
            time.sleep(max(0.0, wait))
            return data

        def release(self, _path: str, fh: int) -> None:
            os.close(fh)

    fuse.FUSE(Throttled(), place, foreground=True, ro=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--megabytes", type=float, default=8.0, help="per second (8)")
    arguments = parser.parse_args()
    serve(str(arguments.folder.resolve()), str(arguments.place), arguments.megabytes * 1e6)


if __name__ == "__main__":
    main()
