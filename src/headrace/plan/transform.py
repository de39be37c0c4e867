"""From the user's transform to steps and a table, and to what stays the user's Python between them.

All of it native where every step is understood; else the longest beginning, and a table at the end where the
end treats every level by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from headrace.plan.origin import describe_callable, located
from headrace.plan.pointwise import PointwiseTable, build_table
from headrace.transforms import find_op, known_base
from headrace.transforms.changed import find_change
from headrace.transforms.containers import is_container, steps_of
from headrace.transforms.levels import Identity, ToPureTensor, ToTensor
from headrace.transforms.op import (
    UNKNOWN,
    Extent,
    ImageOp,
    LevelOp,
    NoNativeForm,
    Op,
    Settled,
    parity_text,
)
from headrace.transforms.random_erasing import RandomErasing

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

    steps: tuple[ImageOp, ...]
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

    steps: tuple[ImageOp, ...]
    extent: Extent
    middle: tuple[Callable[[Any], Any], ...]
    suffix: tuple[Callable[[Any], Any], ...]
    pointwise: PointwiseTable | None
    notes: tuple[StepNote, ...]
    erase: RandomErasing | None = None


@dataclass
class _Item:
    """A transform on its way through the planner.

    Attributes:
        op: as it was read; None: it isn't known, or can't be read.
        settled: what becomes of an image op where it stands.
    """

    transform: Any
    op: Op | None = None
    settled: Settled | None = None
    text: str = ""
    problem: str = ""


def lower_transform(transform: Any, size: Extent = UNKNOWN) -> LoweredTransform | SplitTransform:
    """What native code makes of `transform` (None: none) on images of `size`, and why not all of it."""
    items = [] if transform is None else [_read(leaf) for leaf in _flatten(transform)]
    _settle(items, size)
    _check_erasing(items)
    whole = None if any(item.problem for item in items) else _lower_whole(items, size)
    return whole if isinstance(whole, LoweredTransform) else _split(items, size, whole)


def _lower_whole(items: Sequence[_Item], size: Extent) -> LoweredTransform | StepNote:
    pointwise = [item for item in items if isinstance(item.op, LevelOp)]
    if not pointwise:
        return _refusal("output", "gives PIL images rather than tensors")
    extent = _extent(items, size)
    if not extent.exact:
        return _refusal("output", "size varies with the picture: give Resize both sizes, or crop at the end")
    table = build_table([item.transform for item in pointwise])
    if isinstance(table, str):
        return _refusal(", ".join(item.text for item in pointwise), table)
    erase = _erasing_of(items)
    if erase is not None and not _holds(table.dtype, erase):
        return _refusal(str(erase), OUT_OF_RANGE)
    notes = tuple(_native_note(item) for item in items)
    return LoweredTransform(_steps(items), extent.height, extent.width, table, notes, erase)


def _split(items: Sequence[_Item], size: Extent, why: StepNote | None) -> SplitTransform:
    """The longest beginning that native code does, and the longest end that is a table.

    `why`: what keeps the transform from running natively as a whole, where no step of it alone does.
    """
    begin = 0
    while begin < len(items) and _keeps_pictures(items[begin]):
        begin += 1
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
        steps=_steps(items[:begin]),
        extent=_extent(items[:begin], size),
        middle=tuple(item.transform for item in items[begin:end]),
        suffix=tuple(item.transform for item in items[end:]),
        pointwise=table,
        notes=(*notes, why) if why is not None else tuple(notes),
        erase=erase,
    )


def _steps(items: Sequence[_Item]) -> tuple[ImageOp, ...]:
    settled = (item.settled for item in items if item.settled is not None)
    return tuple(each.op for each in settled if each.op is not None)


def _extent(items: Sequence[_Item], size: Extent) -> Extent:
    """Of the image after `items`, which begin with the data set's, of `size`."""
    extents = [item.settled.extent for item in items if item.settled is not None]
    return extents[-1] if extents else size


def _erasing_of(items: Sequence[_Item]) -> RandomErasing | None:
    return next((item.op for item in items if isinstance(item.op, RandomErasing)), None)


def _works_on_values(item: _Item) -> bool:
    return isinstance(item.op, (LevelOp, RandomErasing)) and not item.problem


def _end_of(items: Sequence[_Item]) -> tuple[PointwiseTable | None, RandomErasing | None]:
    """The table of the steps at the end, and the erasing; no table: the end is the user's Python."""
    levels = [item.transform for item in items if isinstance(item.op, LevelOp)]
    table = build_table(levels) if items else ""
    erase = _erasing_of(items)
    if isinstance(table, str) or (erase is not None and not _holds(table.dtype, erase)):
        return None, None
    return table, erase


def _keeps_pictures(item: _Item) -> bool:
    """Whether native code can do `item` where everything before it was done by it, on a picture."""
    return isinstance(item.op, (ImageOp, Identity)) and not item.problem


def lower_values(transform: Any, channels: int) -> tuple[PointwiseTable, tuple[StepNote, ...]] | None:
    """The table of a transform that has pointwise steps only, for pictures of 3 (RGB) or 1 (L) channels."""
    items = [_read(leaf) for leaf in _flatten(transform)]
    if any(item.problem or not isinstance(item.op, LevelOp) for item in items):
        return None
    table = build_table([item.transform for item in items], channels)
    return None if isinstance(table, str) else (table, tuple(map(_native_note, items)))


def _flatten(transform: Any, depth: int = 0) -> Iterator[Any]:
    """The transforms inside containers, in the order in which they are called."""
    steps = steps_of(transform) if depth < MAX_DEPTH else None
    if steps is None:
        yield transform
        return
    for inner in steps:
        yield from _flatten(inner, depth + 1)


def _read(transform: Any) -> _Item:
    cls = find_op(type(transform))
    if cls is None:
        problem = _unknown_reason(transform)
        return _Item(transform, text=located(describe_callable(transform), transform), problem=problem)
    name = type(transform).__name__
    change = find_change(transform)
    if change is not None:
        return _Item(transform, text=name, problem=change)
    try:
        op = cls.read(transform)
    except (NoNativeForm, AttributeError) as verdict:  # an object of another version may lack an attribute
        return _Item(transform, text=name, problem=str(verdict))
    return _Item(transform, op, text=str(op))


def _unknown_reason(transform: Any) -> str:
    base = known_base(transform)
    if base is not None:
        return f"a subclass of {base.__name__}, which may do anything"
    if is_container(type(transform)):
        return find_change(transform) or f"nested more than {MAX_DEPTH} deep"
    return NO_NATIVE_FORM


def _settle(items: Sequence[_Item], extent: Extent) -> None:
    """Decides on each image op in its place, the first of them on images of `extent`. After one with a
    problem the next is judged as if it had run."""
    on_tensor = False
    for item in items:
        # All others leave an image an image, or raise an error for one (which the table's making finds out).
        on_tensor = on_tensor or isinstance(item.op, ToTensor)
        if isinstance(item.op, ImageOp):
            item.settled = item.op.settle(extent, on_tensor=on_tensor)
            item.problem = item.settled.problem
            extent = item.settled.extent
            if item.settled.op is not None:
                item.text = str(item.settled.op)


def _check_erasing(items: Sequence[_Item]) -> None:
    """An erasing anywhere but at the end is a problem."""
    for i, item in enumerate(items):
        last = all(isinstance(after.op, (ToPureTensor, Identity)) for after in items[i + 1 :])
        if isinstance(item.op, RandomErasing) and not last:
            item.problem = NOT_LAST


def _holds(dtype: torch.dtype, erase: RandomErasing) -> bool:
    # What torch makes of a float outside of uint8's range depends on the processor.
    if dtype.is_floating_point:
        return True
    return erase.value is not None and all(0 <= value <= 255 for value in erase.value)


def _native_note(item: _Item) -> StepNote:
    if isinstance(item.op, ImageOp):
        note = "" if item.settled is None else item.settled.note
        return StepNote(item.text, note, parity_text(item.op.parity))
    if isinstance(item.op, Identity):
        return StepNote(item.text, "changes nothing", "exact")
    reason = ERASED if isinstance(item.op, RandomErasing) else IN_TABLE
    return StepNote(item.text, reason, "exact", suffix=True)


def _python_note(item: _Item) -> StepNote:
    reason = f"{item.problem}; {PER_SAMPLE}" if item.problem else PER_SAMPLE
    return StepNote(item.text, reason, python=True, refused=bool(item.problem))


def _refusal(step: str, reason: str) -> StepNote:
    return StepNote(step, reason, python=True, refused=True)
