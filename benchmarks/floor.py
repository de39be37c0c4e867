"""Loads that Headrace has little or nothing native for, against torch's DataLoader: it must never be slower.

Each row runs in a process of its own. A round makes a loader of either kind and takes three epochs of each:
the first shows what starting costs, the others the steady rate; rounds alternate which loader goes first.
Ratios are torch's time over Headrace's, so above 1 Headrace is faster: the median over rounds, and the range.
"processor" compares the processor time of whole rounds, that of worker processes and of their start included:
it depends less on what else the machine does. "best" compares the fastest of several numbers of workers of
each loader. Batches are compared before anything is timed. The rows of `floor_calls.py` compare single calls,
which have later epochs only: a function called with 40 files, or an order of a million samples.

    python benchmarks/floor.py --short                     (15 minutes on 2 cores, without "best")
    python benchmarks/floor.py --rows numbers HDF5         (rows whose names contain one of these words)
    python benchmarks/floor.py --output benchmarks/results/FILE.json   (rows that it has already are replaced)
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import multiprocessing
import pickle
import resource
import statistics
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

import headrace
import machine
from floor_calls import CALLS, Call
from floor_rows import ROWS, Row

LOADERS = {"headrace": headrace.DataLoader, "torch": torch.utils.data.DataLoader}
LATER_EPOCHS = 2
CALL_ROUNDS, CALL_REPEATS = 3, 5
WORKERS_TRIED = (0, 2, 4)
FIGURES = ("first_batch", "first_epoch", "later_epoch", "processor")


def epoch(loader: Iterable[Any]) -> tuple[float, float]:
    """Seconds to the first batch and to the end."""
    start = time.perf_counter()
    first = 0.0
    for _batch in loader:
        first = first or time.perf_counter() - start
    return first, time.perf_counter() - start


def one_round(make: Callable[[], Iterable[Any]], *, new_loaders: bool = False) -> dict[str, float]:
    """Seconds of a new loader, by the names in FIGURES.

    Args:
        new_loaders: whether each epoch gets a loader of its own, as in a function that validates.
    """
    gc.collect()
    before = processor_seconds()
    loader = make()
    first_batch, first_epoch = epoch(loader)
    later = statistics.median(epoch(make() if new_loaders else loader)[1] for _ in range(LATER_EPOCHS))
    del loader
    gc.collect()  # processor time of worker processes counts once they have ended
    used = processor_seconds() - before
    return dict(zip(FIGURES, (first_batch, first_epoch, later, used), strict=True))


def processor_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def check_equal(dataset: Any, row: Row) -> None:
    """Raises ValueError where the first batches of the two loaders differ."""
    seen = []
    for kind in LOADERS.values():
        torch.manual_seed(0)
        batches = list(islice(kind(dataset, **row.options(dataset)), 3))
        seen.append(_pickled(batches))
    if seen[0] != seen[1]:
        raise ValueError("the batches of the two loaders differ")


def _pickled(value: Any) -> bytes:
    return pickle.dumps(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.numpy().tobytes()
    if isinstance(value, dict):
        return [(name, _plain(item)) for name, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Image.Image):
        value = np.asarray(value)
    return (value.shape, value.tobytes()) if isinstance(value, np.ndarray) else repr(value)


def compare(row: Row, rounds: int, *, best: bool) -> dict[str, Any]:
    """Seconds of both loaders, one entry a round."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        dataset = row.make(Path(folder))
        check_equal(dataset, row)
        found: dict[str, Any] = {name: {figure: [] for figure in FIGURES} for name in LOADERS}
        for i in range(rounds):
            for name in sorted(LOADERS, reverse=i % 2 == 1):
                make = partial(LOADERS[name], dataset, **row.options(dataset))
                for figure, seconds in one_round(make, new_loaders=row.new_loaders).items():
                    found[name][figure].append(seconds)
        if best:
            found["by_workers"] = by_workers(row, dataset, found)
    return found


def compare_calls(call: Call, rounds: int) -> dict[str, Any]:
    """Seconds of both functions, one entry a round."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs, inputs = call.make(Path(folder))
        if call.same and any(_pickled(ours(one)) != _pickled(theirs(one)) for one in inputs):
            raise ValueError("the two functions give different values")
        found: dict[str, Any] = {name: {"later_epoch": []} for name in LOADERS}
        functions = dict(zip(LOADERS, (ours, theirs), strict=True))
        for i in range(CALL_ROUNDS * rounds):
            for name in sorted(LOADERS, reverse=i % 2 == 1):
                start = time.perf_counter()
                for one in CALL_REPEATS * inputs:
                    functions[name](one)
                found[name]["later_epoch"].append(time.perf_counter() - start)
    return found


def by_workers(row: Row, dataset: Any, found: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Median seconds of a later epoch of each loader with several numbers of workers."""
    seconds = {name: {row.workers: statistics.median(found[name]["later_epoch"])} for name in LOADERS}
    for workers in WORKERS_TRIED:
        if workers == row.workers:
            continue
        times: dict[str, list[float]] = {name: [] for name in LOADERS}
        for i in range(2):
            for name in sorted(LOADERS, reverse=i % 2 == 1):
                make = partial(LOADERS[name], dataset, **row.options(dataset, workers))
                times[name].append(one_round(make, new_loaders=row.new_loaders)["later_epoch"])
        for name in LOADERS:
            seconds[name][workers] = statistics.median(times[name])
    return seconds


def run(row: Row | Call, rounds: int, *, best: bool) -> dict[str, Any]:
    """`compare` in a process of its own; {"skipped": why} where that fails."""
    if row.needs is not None and importlib.util.find_spec(row.needs) is None:
        return {"skipped": f"{row.needs} is not installed"}
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_child, args=(there, row, rounds, best))
    process.start()
    there.close()
    try:
        found: dict[str, Any] = here.recv()
    except EOFError:
        found = {"skipped": "its process died"}
    process.join()
    return found


def _child(end: Any, row: Row | Call, rounds: int, best: bool) -> None:
    try:
        end.send(compare_calls(row, rounds) if isinstance(row, Call) else compare(row, rounds, best=best))
    except Exception as error:
        traceback.print_exc()
        end.send({"skipped": f"{type(error).__name__}: {error}"})


def ratios(found: dict[str, Any], figure: str) -> list[float]:
    """Returns Headrace's speed as a multiple of torch's in each round, from low to high; [] if that wasn't
    measured."""
    if figure not in found["headrace"]:
        return []
    pairs = zip(found["headrace"][figure], found["torch"][figure], strict=True)
    return sorted(theirs / ours for ours, theirs in pairs)


def best_ratio(found: dict[str, Any]) -> float | None:
    """The same of the fastest number of workers of each, or None if not measured."""
    if "by_workers" not in found:
        return None
    ours, theirs = (min(found["by_workers"][name].values()) for name in ("headrace", "torch"))
    return float(theirs / ours)


def show(rows: dict[str, Any]) -> None:
    """Prints the table, and the geometric means of all rows but those with native samples and of calls."""
    native = {row.name for row in (*ROWS, *CALLS) if isinstance(row, Call) or row.native}
    table = Table(title="times as fast as torch's DataLoader", title_justify="left")
    headings = (
        "load",
        "torch, s",
        "later epochs",
        "range",
        "first epoch",
        "first batch",
        "processor",
        "best",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "load" else "right")
    medians: dict[str, list[float]] = {figure: [] for figure in FIGURES}
    for name, found in rows.items():
        if "skipped" in found:
            table.add_row(name, "", found["skipped"])
            continue
        each = {figure: ratios(found, figure) for figure in FIGURES}
        for figure in FIGURES:
            if each[figure] and name not in native:
                medians[figure].append(statistics.median(each[figure]))
        later, best = each["later_epoch"], best_ratio(found)
        table.add_row(
            name,
            f"{statistics.median(found['torch']['later_epoch']):.2f}",
            f"{statistics.median(later):.2f}",
            f"{later[0]:.2f} to {later[-1]:.2f}",
            *(
                f"{statistics.median(each[figure]):.2f}" if each[figure] else ""
                for figure in ("first_epoch", "first_batch", "processor")
            ),
            "" if best is None else f"{best:.2f}",
        )
    console = Console(width=130)
    console.print(table)
    for figure in (figure for figure in FIGURES if medians[figure]):
        below = sum(median < 1 for median in medians[figure])
        mean = statistics.geometric_mean(medians[figure])
        count = len(medians[figure])
        console.print(f"{figure.replace('_', ' ')}: geometric mean {mean:.2f}, below 1: {below} of {count}")


def main() -> None:
    """Measures, prints a table, and keeps the figures where --output says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--short", action="store_true", help="3 rounds, and no other numbers of workers")
    parser.add_argument("--rows", nargs="+", default=[""], help="only rows whose names contain one of these")
    parser.add_argument("--missing", action="store_true", help="only rows that --output lacks")
    parser.add_argument("--output", type=Path, help="kept after every row")
    arguments = parser.parse_args()
    output: Path | None = arguments.output
    about = {"machine": machine.describe(), "foreign_cores_before": round(machine.foreign_load(), 2)}
    rows: dict[str, Any] = {}
    if output is not None and arguments.missing:
        rows = machine.continued(output).get("rows", {})
    elif output is not None and output.exists():
        rows = json.loads(output.read_text())["rows"]
    for row in (*ROWS, *CALLS):
        chosen = any(word in row.name for word in arguments.rows)
        if not chosen or (arguments.missing and row.name in rows):
            continue
        print(row.name, flush=True)
        rows[row.name] = run(row, 3 if arguments.short else arguments.rounds, best=not arguments.short)
        if output is not None:
            machine.keep({**about, "torch": torch.__version__, "rows": rows}, output)
    show(rows)


if __name__ == "__main__":
    main()
