"""Single keys from a terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from contextlib import AbstractContextManager
from types import TracebackType


class Keys(AbstractContextManager["Keys"]):
    """Until the block ends, keys reach this program as they are pressed, and aren't shown. Ctrl-C stays."""

    def __enter__(self) -> Keys:
        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal)
        return self

    def quit_within(self, seconds: float) -> bool:
        """Whether q is pressed within so long, or the terminal goes away; returns at once then."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._terminal], [], [], left)[0]:
                return False
            pressed = os.read(self._terminal, 64)
            if not pressed or b"q" in pressed.lower():
                return True
        return False

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._before)
