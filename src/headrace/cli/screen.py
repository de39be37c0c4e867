"""`headrace top` on a terminal: drawn again and again, ended by a key."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
import time
import tty
from contextlib import AbstractContextManager
from types import TracebackType

from rich.console import Console
from rich.live import Live

from headrace.cli.top_view import draw
from headrace.cli.watch import Watch

# Until the first frame, where the interval is longer.
FIRST_SECONDS = 0.5


class Keys(AbstractContextManager["Keys"]):
    """Until the block ends, keys reach this program as they are pressed, and aren't shown. Ctrl-C stays."""

    def __enter__(self) -> Keys:
        self._terminal = sys.stdin.fileno()
        self._before = termios.tcgetattr(self._terminal)
        tty.setcbreak(self._terminal)
        return self

    def quit_within(self, seconds: float) -> bool:
        """Whether q is pressed within so long, or the terminal goes away: returns at once then."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not select.select([self._terminal], [], [], left)[0]:
                return False
            try:
                pressed = os.read(self._terminal, 64)
            except OSError:
                return True  # nobody is there any more
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


def show(console: Console, watch: Watch, interval: float) -> bool:
    """Draws until q, Ctrl-C or SIGTERM (False), or the job's end (True); the terminal is then as it was."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    pause = min(interval, FIRST_SECONDS)
    try:
        with Keys() as keys, Live(console=console, screen=True, auto_refresh=False) as live:
            while not keys.quit_within(pause):
                if not watch.look():
                    return True
                live.update(draw(watch.frame(), watch.stalls, console.width, console.height), refresh=True)
                pause = interval
    except KeyboardInterrupt:
        pass
    return False
