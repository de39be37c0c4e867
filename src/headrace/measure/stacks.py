"""The stacks of this process's threads, read cheaply enough to be read 200 times a second."""

from __future__ import annotations

import linecache
import re
import sys
from dataclasses import dataclass
from os.path import basename
from types import CodeType, FrameType
from typing import Any

from headrace.measure.stages import (
    OURS,
    Blocked,
    Frame,
    Stage,
    anchor,
    classify,
    is_users,
    is_waiting,
)

MOST_CACHED = 20_000  # stacks whose stage is remembered


@dataclass(frozen=True, slots=True)
class Code:
    """What is known of a code object for good."""

    filename: str
    function: str
    first_line: int
    users: bool
    anchored: bool
    worker: bool  # outermost of a worker process
    owner: str  # the class that it is a method of
    container: bool  # runs transforms, one after the other
    calls_module: bool
    fetches: bool


class Stacks:
    """Tells stages of threads by their innermost frame; remembers what it has told."""

    def __init__(self) -> None:
        self._codes: dict[CodeType, Code] = {}
        self._stages: dict[tuple[Any, ...], Stage | None] = {}

    def stage(self, innermost: FrameType, blocked: Blocked, thread: str) -> tuple[Stage | None, str]:
        """What a thread is at, and its innermost line of the user's code, as "file.py:41 function".

        Args:
            innermost: the thread's innermost frame.
            blocked: what the system says that it does.
            thread: its name; "" for the main thread.
        """
        walked: list[tuple[CodeType, int, str]] = []
        codes = self._codes
        anchored = False
        line = ""
        frame: FrameType | None = innermost
        while frame is not None:
            code = frame.f_code
            about = codes.get(code)
            if about is None:
                about = codes[code] = describe(code)
            walked.append(
                (code, frame.f_lasti, class_of_module(frame) if about.calls_module else about.owner)
            )
            anchored = anchored or about.anchored
            if about.users and not line:
                line = f"{basename(about.filename)}:{frame.f_lineno} {about.function}"
            # What a forked worker was forked within is its parent's.
            frame = None if about.worker else frame.f_back
        if not anchored and not thread:
            return Stage("step", "step", is_waiting(self._frame(*walked[0], with_source=True), blocked)), line
        key = (blocked, thread, *walked)
        if key not in self._stages:
            if len(self._stages) >= MOST_CACHED:
                self._stages.clear()
            self._stages[key] = classify(self._frames(walked), blocked, thread)
        return self._stages[key], line

    def _frames(self, walked: list[tuple[CodeType, int, str]]) -> list[Frame]:
        """Outermost first. Of what was walked, not of the frames: these may have run on since."""
        frames: list[Frame] = []
        for code, instruction, owner in walked:
            with_source = not frames or self._codes[code].fetches
            frames.append(self._frame(code, instruction, owner, with_source))
        return frames[::-1]

    def _frame(self, code: CodeType, instruction: int, owner: str, with_source: bool) -> Frame:
        about = self._codes[code]
        line = line_of(code, instruction)
        return Frame(
            about.filename,
            about.function,
            about.first_line,
            line,
            owner=owner,
            container=about.container,
            source=linecache.getline(about.filename, line).strip() if with_source else "",
        )


def line_of(code: CodeType, instruction: int) -> int:
    """The line that an instruction comes from; the function's first where none is noted."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def describe(code: CodeType) -> Code:
    """What a code object alone tells."""
    filename, function = code.co_filename, code.co_name
    frame = Frame(filename, function, code.co_firstlineno, 0)
    return Code(
        filename,
        function,
        code.co_firstlineno,
        is_users(filename),
        bool(anchor(frame)),
        worker=anchor(frame) == "worker" and OURS in filename,
        owner=class_of(code),
        container=_is_container(code),
        calls_module=filename.endswith("/torch/nn/modules/module.py") and function == "_wrapped_call_impl",
        fetches=anchor(frame) == "fetch",
    )


def _is_container(code: CodeType) -> bool:
    """The code is of a Compose, a Sequential or their like, whoever wrote it."""
    if code.co_name not in ("__call__", "forward", "execute_compose"):
        return False
    if code.co_filename.endswith("/torch/nn/modules/container.py"):
        return True
    return "transforms" in code.co_names


def class_of_module(frame: FrameType) -> str:
    """The class of the module that a frame of `Module._wrapped_call_impl` calls.

    Before Python 3.13, `f_locals` copies the locals into a dict that stays with the frame. A second copy
    would free what the first has held, and to free a tensor may give way to other threads, so that the frame
    ends while it is copied, and Python crashes. This function's locals never change: nothing is freed.
    """
    return type(frame.f_locals.get("self")).__name__


def class_of(code: CodeType) -> str:
    """The class that a method is written in; "" of a function."""
    if sys.version_info >= (3, 11):
        outer = code.co_qualname.split(".")[:-1]
        return outer[-1] if outer and outer[-1] != "<locals>" else ""
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None) == code.co_filename:
            for value in list(vars(module).values()):
                if isinstance(value, type) and value.__module__ == module.__name__:
                    method = vars(value).get(code.co_name)
                    if getattr(method, "__code__", None) is code:
                        return value.__name__
    return ""


def name_of_thread(name: str) -> str:
    """A thread's name without its number, so that the threads of a pool are counted as one."""
    return re.sub(r"[-_ ]?\d+", "", name)
