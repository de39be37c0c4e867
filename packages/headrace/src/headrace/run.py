"""Loaders for the processes of `headrace run`, which report what they did.

The report goes to standard error when the process ends. With several ranks only the first one reports.
"""

from __future__ import annotations

import ast
import atexit
import contextlib
import functools
import itertools
import linecache
import os
import sys
import sysconfig
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch.utils.data import DataLoader as TorchDataLoader

import headrace.loader
from headrace import replacement
from headrace.order.shard import detect_rank
from headrace.records import EpochStats

__all__ = ["ReplacingDataLoader"]

# Values of the variable: report at the end, or with whole plans; explain each loader at its first batch;
# compare each loader with torch's for the number of seconds that follows the colon.
REPORT, PLANS, EXPLAIN, COMPARE = "report", "report plans", "explain", "compare:"
# Turns that each of two compared loaders gets.
TURNS = 3
_epochs = itertools.count()
LIBRARIES = tuple({sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib")})


class Place(NamedTuple):
    """The line of the program that created a loader."""

    file: str
    line: int

    def __str__(self) -> str:
        folder = ""
        if not self.in_library:
            with contextlib.suppress(FileNotFoundError):  # the program has deleted the current folder
                folder = os.getcwd() + os.sep
        return f"{self.file.removeprefix(folder)}:{self.line}"

    @property
    def in_library(self) -> bool:
        """True if the line belongs to an installed package."""
        parts = self.file.split(os.sep)
        return self.file.startswith(LIBRARIES) or "site-packages" in parts or "dist-packages" in parts


@dataclass
class Use:
    """The work of all loaders that were created at one place.

    Attributes:
        explanation: the latest `explain()` of one of them.
        loaders, epochs, samples, batches: numbers of each.
        seconds: duration of the epochs without the waits for first batches.
        stall_seconds: part of `seconds` in which the program waited for batches.
    """

    explanation: str = ""
    loaders: int = 0
    epochs: int = 0
    samples: int = 0
    batches: int = 0
    seconds: float = 0.0
    stall_seconds: float = 0.0

    def add(self, epoch: EpochStats) -> None:
        """Adds an epoch that has ended."""
        self.epochs += 1
        self.samples += epoch.samples
        self.batches += epoch.batches
        self.seconds += epoch.seconds - epoch.startup_seconds
        self.stall_seconds += epoch.stall_seconds

    def lines(self, *, plans: bool) -> Iterator[str]:
        """The report in words, with all of the explanation if `plans`."""
        title, *rest = self.explanation.split("\n\n")
        if plans:
            yield from self.explanation.splitlines()
        else:
            yield title
            for line in "\n".join(rest[1:]).splitlines():  # what follows the table of steps
                if line.startswith(("images:", "to run all")):
                    yield line
        counts = (("epoch", self.epochs), ("batch", self.batches), ("sample", self.samples))
        yield ", ".join(_count(number, what) for what, number in counts)
        if self.seconds > 0:
            share = min(1.0, self.stall_seconds / self.seconds)
            rate = self.samples / self.seconds
            yield f"{rate:,.0f} samples/s, {share:.0%} of the time waiting for data"


@dataclass
class Report:
    """The work of all loaders of this process.

    Attributes:
        uses: by the place of loaders, what they did.
        left_alone: classes of other libraries and places where their loaders were created.
        running: by number, epochs that have begun and not ended; each can be called to end it.
        rank: that of torch.distributed, as the latest epoch began, or else of the environment.
    """

    uses: dict[Place, Use] = field(default_factory=dict)
    left_alone: dict[str, None] = field(default_factory=dict)
    running: dict[int, weakref.finalize[..., Any]] = field(default_factory=dict)
    process: int = field(default_factory=os.getpid)
    rank: int = 0

    def begin(self, loader: ReplacingDataLoader, iterator: Any) -> None:
        """Adds an epoch, whose end is when its iterator is freed or the process ends."""
        self.rank, _ = detect_rank()
        number = next(_epochs)
        self.running[number] = weakref.finalize(iterator, self._end, number, loader)

    def _end(self, number: int, loader: ReplacingDataLoader) -> None:
        if os.getpid() == self.process:
            del self.running[number]
            use = self.uses[loader.place]
            use.add(loader.stats().epochs[-1])
            # The second epoch knows what workers found out in the first.
            if loader.passes <= 2 or not use.explanation:
                use.explanation = loader.explain()

    def leave_alone(self, cls: type) -> None:
        """Notes the class of a loader that was created, which is not replaced, unless it is Headrace's."""
        if not issubclass(cls, headrace.loader.DataLoader):
            self.left_alone[f"{cls.__module__}.{cls.__qualname__} of {_place()}"] = None

    def write(self) -> None:
        """Writes the report to standard error, as the process ends."""
        rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK")  # Lightning sets the latter alone
        if os.getpid() != self.process or self.rank or rank not in (None, "0"):
            return
        lines = []
        mode = os.environ.get(replacement.VARIABLE)
        if mode in (REPORT, PLANS):
            for end in list(self.running.values()):
                end()
            uses = {place: use for place, use in self.uses.items() if use.epochs}
            lines += [f"headrace: {_count(sum(use.loaders for use in uses.values()), 'loader')}"]
            for place, use in uses.items():
                lines += [f"  {place}", *(f"    {line}".rstrip() for line in use.lines(plans=mode == PLANS))]
            lines += _advice(list(uses)) if uses else []
        lines += [f"  left as it is: {name}, a subclass of torch's DataLoader" for name in self.left_alone]
        with contextlib.suppress(OSError, ValueError):  # the program has closed its standard error
            sys.stderr.write("".join(f"{line}\n" for line in lines))


class ReplacingDataLoader(headrace.loader.ReplacingDataLoader[Any]):
    """A loader that reports what it did.

    Attributes:
        report: the report of this process.
        place: the line of the program that created it.
        arguments: the arguments that it was created with.
        passes: number of epochs that have started; of those of one batch, also of those that have ended.
    """

    report = Report()

    @functools.wraps(headrace.loader.DataLoader.__init__)  # type: ignore[misc]
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.place = _place(self)
        self.arguments = args, kwargs
        self.passes = 0
        super().__init__(*args, **kwargs)
        self.report.uses.setdefault(self.place, Use()).loaders += 1

    def __iter__(self) -> Any:
        mode = os.environ.get(replacement.VARIABLE, REPORT)
        if mode not in (REPORT, PLANS):
            return self._one_batch(mode)
        self.passes += 1
        iterator = super().__iter__()
        self.report.begin(self, iterator)
        return iterator

    def _one_batch(self, mode: str) -> Iterator[Any]:
        """Yields the first batch of an epoch alone, if there is one. Ends the program when it comes for a
        second epoch, or for a third if it took one batch of the first and asked for no more."""
        if self.passes >= 2:
            sys.exit(0)
        self.passes += 1
        first = list(itertools.islice(super().__iter__(), 1))
        if self.passes == 1:
            text = self.explain() if mode == EXPLAIN else self._comparison(float(mode.removeprefix(COMPARE)))
            _print(f"{self.place}\n{text}\n\n")
        yield from first
        self.passes += 1

    def _comparison(self, seconds: float) -> str:
        """Iterates over this loader and torch's in turn, so many seconds together. Returns their rates."""
        args, kwargs = self.arguments
        torchs: TorchDataLoader[Any] = object.__new__(TorchDataLoader)  # calling the class would create ours
        torchs.__init__(*args, **kwargs)  # type: ignore[misc]
        ours, theirs = Rate(), Rate()
        for _ in range(TURNS):
            ours.measure(super().__iter__, seconds / (2 * TURNS))
            theirs.measure(torchs.__iter__, seconds / (2 * TURNS))
        if not (ours.seconds and theirs.seconds):
            return "An epoch of this loader has no batches to compare."
        size = self.batch_size or 1
        times = ours.per_second / theirs.per_second
        return (
            f"Headrace {size * ours.per_second:,.0f} samples/s, torch's DataLoader"
            f" {size * theirs.per_second:,.0f} samples/s: {times:.3g} times as fast"
            f" ({ours.seconds:.1f} and {theirs.seconds:.1f} s, in {TURNS} turns)"
        )


@dataclass
class Rate:
    """A loader's batches per second, if nothing is done with them."""

    batches: int = 0
    seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds

    def measure(self, begin: Any, seconds: float) -> None:
        """Takes batches for so many seconds: of one epoch after its first batch; or if it is shorter, of
        whole epochs after it, with what it takes to start them."""
        iterator = begin()
        if next(iterator, None) is None:
            return
        started = now = time.perf_counter()
        batches = 0
        for batches, _ in enumerate(iterator, 1):  # noqa: B007
            now = time.perf_counter()
            if now > started + seconds:
                break
        else:
            end = started + seconds
            started, batches = time.perf_counter(), 0
            while not batches or time.perf_counter() < end:
                batches += sum(1 for _ in begin())
            now = time.perf_counter()
        self.batches += batches
        self.seconds += now - started


def _place(loader: Any = None) -> Place:
    """The innermost line that is neither Headrace's nor torch's, nor in a function that creates `loader`."""
    frame = sys._getframe(1)
    while frame.f_back:
        own = frame.f_globals.get("__name__", "").split(".")[0] in ("headrace", "torch")
        first = frame.f_locals.get(frame.f_code.co_varnames[0]) if frame.f_code.co_argcount else None
        if not own and (loader is None or first is not loader):  # Lightning wraps the constructor
            break
        frame = frame.f_back
    return Place(os.path.abspath(frame.f_code.co_filename), frame.f_lineno)


def _print(text: str) -> None:
    """Prints to standard output, which may be ASCII, as Python prints to standard error."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
    sys.stdout.flush()


def _count(number: int, what: str) -> str:
    plural = what + ("es" if what.endswith("ch") and what != "epoch" else "s")
    return f"{number:,} {what if number == 1 else plural}"


def _advice(places: list[Place]) -> Iterator[str]:
    """The lines to change for the program to use Headrace without `headrace run`."""
    files = sorted({place.file for place in places if not place.in_library})
    imports = [(file, node) for file in files for node in _imports(file)]
    for file, node in imports:
        yield f"  to keep it, change {Place(file, node.lineno)}:"
        yield f"    -{ast.unparse(node)}"
        node.names = [alias for alias in node.names if alias.name != "DataLoader"]
        yield from [f"    +{ast.unparse(node)}"] if node.names else []
        yield "    +from headrace import DataLoader"
    if not imports:
        yield "  to keep it, write this at the top of the program:"
        yield "    import headrace; headrace.install()"


def _imports(file: str) -> Iterator[ast.ImportFrom]:
    """The statements of a file that import DataLoader from torch.utils.data by its name."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a notebook's cell, for example
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("torch.utils.data"):
            yield from [node for alias in node.names if (alias.name, alias.asname) == ("DataLoader", None)]


replacement.on_other_class = ReplacingDataLoader.report.leave_alone
atexit.register(ReplacingDataLoader.report.write)
