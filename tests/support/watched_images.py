"""A data set that notes who asks it for what, on any node."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
from PIL import Image


class Watched:
    """Random images; each request is a line in `log`: index and process.

    Those of the second half wait, for at most two minutes, until `together` processes have made requests.
    """

    def __init__(self, count: int, log: Path, together: int = 1) -> None:
        self.count = count
        self.log = log
        self.together = together

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        with open(self.log, "ab") as file:
            file.write(b"%d %d\n" % (index, os.getpid()))
        late = time.monotonic() + 120
        while 2 * index >= self.count and self.processes() < self.together and time.monotonic() < late:
            time.sleep(0.05)
        pixels = np.random.default_rng(index).integers(0, 256, (64, 64, 3), np.uint8)
        return Image.fromarray(pixels), index % 3

    def processes(self) -> int:
        """Number of processes that have made requests."""
        return len({process for _, process in self.requests()})

    def requests(self) -> list[tuple[int, int]]:
        """(index, process) of each, in order."""
        return [(int(a), int(b)) for a, b in (line.split() for line in self.log.read_text().splitlines())]
