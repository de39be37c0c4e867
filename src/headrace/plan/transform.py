"""From the user's transform to steps and a table, and to what stays the user's Python between them.

All of it native where every step is understood; else the longest beginning, and a table at the end where the
end treats every level by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.plan import geometry
from headrace.plan.arguments import NotLowerable
from headrace.plan.catalogue import (
    CONTAINERS,
    UNCHANGING,
    Erasing,
    Geometry,
    Pointwise,
    Row,
    find_row,
    keeps_everything,
    known_base,
    parity_text,
)
from headrace.plan.changed import find_change
from headrace.plan.logical import RandomErasing, Step
from headrace.plan.origin import describe_callable, located
from headrace.plan.pointwise import PointwiseTable, build_table

# Deeper than anyone nests by hand; a list that contains itself ends here instead of never.
MAX_DEPTH = 32

NO_NATIVE_FORM = "no native form"
PER_SAMPLE = "runs as Python, sample by sample"
IN_TABLE = "in the table of 256 levels per channel"
ERASED = "drawn by sample, written into the batch"
NOT_LAST = "erases before other steps; put it at the end"
OUT_OF_RANGE = "may erase with what uint8 doesn't hold"


@dataclass(frozen=True)
class StepNote:
    """One transform of the user's in words: what it is, and why it was decided on as it was.

    Attributes:
        python: it runs as the user's Python.
        refused: it keeps the transform from running natively as a whole.
        suffix: it works on values, and so may be done to whole batches, wherever they are.
    """

    step: str
    reason: str = ""
    parity: str = ""
    python: bool = False
    refused: bool = False
    suffix: bool = False


@dataclass(frozen=True, eq=False)
class LoweredTransform:
    """A transform that native code does whole: `steps` give height × width pixels, `pointwise` the values,
    part of which `erase` overwrites."""

    steps: tuple[Step, ...]
    height: int
    width: int
    pointwise: PointwiseTable
    notes: tuple[StepNote, ...]
    erase: RandomErasing | None = None


@dataclass(frozen=True, eq=False)
class SplitTransform:
    """A transform that native code begins, the user's Python goes on with, and a table may end.

    Attributes:
        steps: done natively on the decoded picture; may be none.
        extent: of the picture after them.
        middle: the user's transforms that follow, called one after another with a PIL RGB image.
        suffix: the user's pointwise transforms at the end, an erasing after them; may be none.
        pointwise: what the pointwise ones make of an RGB picture; None where there are none.
        erase: what overwrites part of that.
        notes: at least one is `refused`.
    """

    steps: tuple[Step, ...]
    extent: geometry.Extent
    middle: tuple[Callable[[Any], Any], ...]
    suffix: tuple[Callable[[Any], Any], ...]
    pointwise: PointwiseTable | None
    notes: tuple[StepNote, ...]
    erase: RandomErasing | None = None


@dataclass
class _Item:
    """A transform on its way through the planner."""

    transform: Any
    row: Row | None = None
    placed: geometry.Placed | None = None  # geometry only
    erase: RandomErasing | None = None  # erasing only
    text: str = ""
    problem: str = ""
    note: str = ""


def lower_transform(transform: Any) -> LoweredTransform | SplitTransform:
    """What native code makes of `transform` (None: no transform), and why not all of it."""
    items = [] if transform is None else [_read(leaf) for leaf in _flatten(transform)]
    _mark_tensors(items)
    verdicts = _check_geometry(items)
    _check_erasing(items)
    whole = None if any(item.problem for item in items) else _lower_whole(items, verdicts)
    return whole if isinstance(whole, LoweredTransform) else _split(items, verdicts, whole)


def _lower_whole(items: Sequence[_Item], verdicts: Sequence[geometry.Verdict]) -> LoweredTransform | StepNote:
    pointwise = [item for item in items if isinstance(item.row, Pointwise)]
    if not pointwise:
        return _refusal("output", "gives PIL images rather than tensors")
    extent = verdicts[-1].extent if verdicts else geometry.UNKNOWN
    if not extent.exact:
        return _refusal("output", "size varies with the picture: give Resize both sizes, or crop at the end")
    table = build_table([item.transform for item in pointwise])
    if isinstance(table, str):
        return _refusal(", ".join(item.text for item in pointwise), table)
    erase = next((item.erase for item in items if item.erase is not None), None)
    if erase is not None and not _holds(table.dtype, erase):
        return _refusal(str(erase), OUT_OF_RANGE)
    steps = tuple(v.step for v in verdicts if v.step is not None)
    notes = tuple(_native_note(item) for item in items)
    return LoweredTransform(steps, extent.height, extent.width, table, notes, erase)


def _split(
    items: Sequence[_Item], verdicts: Sequence[geometry.Verdict], why: StepNote | None
) -> SplitTransform:
    """The longest beginning that native code does, and the longest end that is a table.

    `why`: what keeps the transform from running natively as a whole, where no step of it alone does.
    """
    begin = 0
    while begin < len(items) and _keeps_pictures(items[begin]):
        begin += 1
    done = verdicts[: sum(item.placed is not None for item in items[:begin])]
    end = len(items)
    while end > begin and _works_on_values(items[end - 1]):
        end -= 1
    table, erase = _end_of(items[end:])
    if table is None:
        end = len(items)
    notes = [_native_note(item) for item in items[:begin]]
    notes += [_python_note(item) for item in items[begin:end]]
    notes += [_native_note(item) for item in items[end:]]
    return SplitTransform(
        steps=tuple(verdict.step for verdict in done if verdict.step is not None),
        extent=done[-1].extent if done else geometry.UNKNOWN,
        middle=tuple(item.transform for item in items[begin:end]),
        suffix=tuple(item.transform for item in items[end:]),
        pointwise=table,
        notes=(*notes, why) if why is not None else tuple(notes),
        erase=erase,
    )


def _works_on_values(item: _Item) -> bool:
    return isinstance(item.row, (Pointwise, Erasing)) and not item.problem


def _end_of(items: Sequence[_Item]) -> tuple[PointwiseTable | None, RandomErasing | None]:
    """The table of the steps at the end, and the erasing; no table: the end is the user's Python."""
    table = build_table([item.transform for item in items if item.erase is None]) if items else ""
    erase = next((item.erase for item in items if item.erase is not None), None)
    if isinstance(table, str) or (erase is not None and not _holds(table.dtype, erase)):
        return None, None
    return table, erase


def _keeps_pictures(item: _Item) -> bool:
    """Whether native code can do `item` where everything before it was done by it, on a picture."""
    if item.problem:
        return False
    return isinstance(item.row, Geometry) or (item.row is not None and keeps_everything(item.row))


def lower_values(transform: Any, channels: int) -> tuple[PointwiseTable, tuple[StepNote, ...]] | None:
    """The table of a transform that has pointwise steps only, for pictures of 3 (RGB) or 1 (L) channels."""
    items = [_read(leaf) for leaf in _flatten(transform)]
    if any(item.problem or not isinstance(item.row, Pointwise) for item in items):
        return None
    table = build_table([item.transform for item in items], channels)
    return None if isinstance(table, str) else (table, tuple(map(_native_note, items)))


def _flatten(transform: Any, depth: int = 0) -> Iterator[Any]:
    """The transforms inside containers, in the order in which they are called."""
    if type(transform) in CONTAINERS and depth < MAX_DEPTH and find_change(transform) is None:
        for inner in transform.transforms:
            yield from _flatten(inner, depth + 1)
    else:
        yield transform


def _read(transform: Any) -> _Item:
    row = find_row(transform)
    if row is None:
        problem = _unknown_reason(transform)
        return _Item(transform, text=located(describe_callable(transform), transform), problem=problem)
    name = type(transform).__name__
    change = find_change(transform)
    if change is not None:
        return _Item(transform, row, text=name, problem=change)
    if isinstance(row, Pointwise):
        return _Item(transform, row, text=_pointwise_text(transform, row))
    try:
        if isinstance(row, Erasing):
            erase = row.read(transform)
            return _Item(transform, row, text=str(erase), erase=erase)
        step = row.read(transform)
    except (NotLowerable, AttributeError) as verdict:  # an object of another version may lack an attribute
        return _Item(transform, row, text=name, problem=str(verdict))
    return _Item(transform, row, geometry.Placed(step), text=str(step))


def _unknown_reason(transform: Any) -> str:
    base = known_base(transform)
    if base is not None:
        return f"a subclass of {base.__name__}, which may do anything"
    if type(transform) in CONTAINERS:
        return find_change(transform) or f"nested more than {MAX_DEPTH} deep"
    return NO_NATIVE_FORM


def _mark_tensors(items: Sequence[_Item]) -> None:
    """Tells geometric steps after the conversion that they see a tensor."""
    converted = False
    for item in items:
        converted = converted or (isinstance(item.row, Pointwise) and _converts(item.row))
        if converted and isinstance(item.row, Geometry) and item.placed is not None:
            item.placed = geometry.Placed(item.placed.step, item.row.on_tensor)


def _converts(row: Pointwise) -> bool:
    # All others leave a picture a picture, or raise an error for one (which the table's making finds out).
    return row.cls.__name__ in ("ToTensor", "PILToTensor", "ToImage")


def _check_geometry(items: Sequence[_Item]) -> tuple[geometry.Verdict, ...]:
    moved = [item.placed for item in items if item.placed is not None]
    verdicts = geometry.check_geometry(moved)
    for item, verdict in _judged(items, verdicts):
        item.problem = item.problem or verdict.problem
        item.note = verdict.note
        if verdict.step is not None:
            item.text = str(verdict.step)
    return verdicts


def _check_erasing(items: Sequence[_Item]) -> None:
    """An erasing anywhere but at the end is a problem."""
    for i, item in enumerate(items):
        last = all(type(after.transform) in UNCHANGING for after in items[i + 1 :])
        if item.erase is not None and not last:
            item.problem = NOT_LAST


def _holds(dtype: torch.dtype, erase: RandomErasing) -> bool:
    # What torch makes of a float outside of uint8's range depends on the processor.
    if dtype.is_floating_point:
        return True
    return erase.value is not None and all(0 <= value <= 255 for value in erase.value)


def _judged(
    items: Sequence[_Item], verdicts: Sequence[geometry.Verdict]
) -> list[tuple[_Item, geometry.Verdict]]:
    """Geometric items with their verdicts."""
    return list(zip((item for item in items if item.placed is not None), verdicts, strict=True))


def _native_note(item: _Item) -> StepNote:
    if isinstance(item.row, Geometry):
        return StepNote(item.text, item.note, parity_text(item.row.parity))
    if item.row is not None and keeps_everything(item.row):
        return StepNote(item.text, "changes nothing", "exact")
    reason = ERASED if isinstance(item.row, Erasing) else IN_TABLE
    return StepNote(item.text, reason, "exact", suffix=True)


def _python_note(item: _Item) -> StepNote:
    reason = f"{item.problem}; {PER_SAMPLE}" if item.problem else PER_SAMPLE
    return StepNote(item.text, reason, python=True, refused=bool(item.problem))


def _refusal(step: str, reason: str) -> StepNote:
    return StepNote(step, reason, python=True, refused=True)


def _pointwise_text(transform: Any, row: Pointwise) -> str:
    shown = ", ".join(f"{name} {_value_text(getattr(transform, name, None))}" for name in row.shown)
    return f"{type(transform).__name__}({shown})"


def _value_text(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value):
        return f"({', '.join(f'{v:.4g}' for v in value)})"
    return " ".join(str(value).split())
