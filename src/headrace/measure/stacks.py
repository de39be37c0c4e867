"""The stacks of this process's threads, read cheaply enough to be read 200 times a second."""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from functools import partial
from os.path import basename
from types import CodeType, FrameType
from typing import Any

from headrace.measure.stages import (
    OURS,
    TRANSFORM_FILES,
    Blocked,
    Frame,
    Stage,
    anchor,
    classify,
    is_users,
    is_waiting,
)

# Names that Compose, Sequential and their like give to the transform that they run at the moment.
RUNNING_NAMES = ("t", "transform", "_transform", "module", "tr", "op", "fn", "aug", "f")
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
    runs: str  # the name of the local that holds the transform that is run; "": isn't a container
    transform: bool  # of a library of transforms
    fetches: bool

    @property
    def named(self) -> bool:
        """A local tells which transform it is."""
        return bool(self.runs) or self.transform


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
            # One code object runs all of v2's transforms: only the object tells them apart.
            walked.append((code, frame.f_lasti, name_in(frame, about) if about.named else ""))
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
        for code, instruction, name in walked:
            with_source = not frames or self._codes[code].fetches
            frames.append(self._frame(code, instruction, name, with_source))
        return frames[::-1]

    def _frame(self, code: CodeType, instruction: int, name: str, with_source: bool) -> Frame:
        about = self._codes[code]
        line = line_of(code, instruction)
        return Frame(
            about.filename,
            about.function,
            about.first_line,
            line,
            owner="" if about.runs else name,
            runs=name if about.runs else "",
            source=linecache.getline(about.filename, line).strip() if with_source else "",
        )


def line_of(code: CodeType, instruction: int) -> int:
    """The line that an instruction comes from; the function's first where none is noted."""
    for start, end, line in code.co_lines():
        if start <= instruction < end and line is not None:
            return line
    return code.co_firstlineno


def name_in(frame: FrameType, about: Code) -> str:
    """Of a container, which transform it runs; of a library's transform, its class."""
    return running(frame, about.runs) if about.runs else owner(frame)


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
        runs=_container_variable(code),
        transform=bool(TRANSFORM_FILES.search(filename)),
        fetches=anchor(frame) == "fetch",
    )


def _container_variable(code: CodeType) -> str:
    """The local in which a Compose, a Sequential or their like holds what it runs; "" of other code."""
    if code.co_name not in ("__call__", "forward", "execute_compose"):
        return ""
    sequential = code.co_filename.endswith("/torch/nn/modules/container.py")
    if not sequential and not any("transforms" in name for name in (*code.co_names, *code.co_varnames)):
        return ""
    return next((name for name in RUNNING_NAMES if name in code.co_varnames), "")


def running(frame: FrameType, variable: str) -> str:
    """The transform that a container runs, by name; "" before its first."""
    transform = frame.f_locals.get(variable)
    return name_of(transform) if callable(transform) else ""


def owner(frame: FrameType) -> str:
    """The class of the frame's `self`; "" if it has none."""
    code = frame.f_code
    if code.co_argcount == 0 or code.co_varnames[0] != "self":
        return ""
    this = frame.f_locals.get("self")
    return "" if this is None else type(this).__name__


def name_of(transform: Any) -> str:
    """A transform's class; "name (file.py:12)" of a function of Python."""
    while isinstance(transform, partial):
        transform = transform.func
    code = getattr(transform, "__code__", None)
    if code is not None:
        return f"{transform.__name__} ({basename(code.co_filename)}:{code.co_firstlineno})"
    original = getattr(transform, "original_name", None)  # of a scripted module
    if isinstance(original, str):
        return original
    if isinstance(transform, type(len)):
        return str(transform.__qualname__)
    return type(transform).__name__


def name_of_thread(name: str) -> str:
    """A thread's name without its number, so that the threads of a pool are counted as one."""
    return re.sub(r"[-_ ]?\d+", "", name)
