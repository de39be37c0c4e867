"""From the user's transform to steps and a table, or to the reasons why not.

All or nothing: one step that isn't understood makes the whole transform run as the user's Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

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
    known_base,
    parity_text,
)
from headrace.plan.logical import RandomErasing, Step
from headrace.plan.origin import describe_callable, located
from headrace.plan.pointwise import PointwiseTable, build_table

# Deeper than anyone nests by hand; a list that contains itself ends here instead of never.
MAX_DEPTH = 32

NO_NATIVE_FORM = "no native form; runs as Python with everything around it"
HAS_NATIVE_FORM = "has a native form"
IN_TABLE = "in the table of 256 levels per channel"
ERASED = "drawn by sample, written into the batch"
NOT_LAST = "erases before other steps; put it at the end"
OUT_OF_RANGE = "may erase with what uint8 doesn't hold"


@dataclass(frozen=True)
class StepNote:
    """One transform of the user's in words: what it is, and why it was decided on as it was.

    `suffix`: it works on values, and so may be done to whole batches, wherever they are.
    """

    step: str
    reason: str = ""
    parity: str = ""
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


@dataclass(frozen=True)
class RefusedTransform:
    """A transform that stays Python; at least one of `notes` is `refused`."""

    notes: tuple[StepNote, ...]


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


def lower_transform(transform: Any) -> LoweredTransform | RefusedTransform:
    """What native code makes of `transform` (None: no transform), or why it can't."""
    if transform is None:
        return RefusedTransform((_not_tensors("transform: None"),))
    items = [_read(leaf) for leaf in _flatten(transform)]
    _mark_tensors(items)
    verdicts = _check_geometry(items)
    erase = _check_erasing(items)
    if any(item.problem for item in items):
        return RefusedTransform(_refused_notes(items))
    pointwise = [item for item in items if isinstance(item.row, Pointwise)]
    if not pointwise:
        return RefusedTransform((*_refused_notes(items), _not_tensors("output")))
    extent = verdicts[-1].extent if verdicts else geometry.UNKNOWN
    if not extent.exact:
        reason = "output size varies with the picture: give Resize both sizes, or crop at the end"
        return RefusedTransform((*_refused_notes(items), StepNote("output", reason, refused=True)))
    table = build_table([item.transform for item in pointwise])
    if isinstance(table, str):
        names = ", ".join(item.text for item in pointwise)
        return RefusedTransform((*_refused_notes(items), StepNote(names, table, refused=True)))
    if erase is not None and not _holds(table.dtype, erase):
        return RefusedTransform((*_refused_notes(items), StepNote(str(erase), OUT_OF_RANGE, refused=True)))
    steps = tuple(v.step for v in verdicts if v.step is not None)
    return LoweredTransform(steps, extent.height, extent.width, table, _native_notes(items), erase)


def lower_values(transform: Any, channels: int) -> tuple[PointwiseTable, tuple[StepNote, ...]] | None:
    """The table of a transform that has pointwise steps only, for pictures of 3 (RGB) or 1 (L) channels."""
    items = [_read(leaf) for leaf in _flatten(transform)]
    if any(item.problem or not isinstance(item.row, Pointwise) for item in items):
        return None
    table = build_table([item.transform for item in items], channels)
    return None if isinstance(table, str) else (table, _native_notes(items))


def _flatten(transform: Any, depth: int = 0) -> Iterator[Any]:
    """The transforms inside containers, in the order in which they are called."""
    if type(transform) in CONTAINERS and depth < MAX_DEPTH and _customised(transform) is None:
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
    customised = _customised(transform)
    if customised is not None:
        return _Item(transform, row, text=name, problem=f"{customised}: {NO_NATIVE_FORM}")
    if isinstance(row, Pointwise):
        return _Item(transform, row, text=_pointwise_text(transform, row))
    try:
        if isinstance(row, Erasing):
            erase = row.read(transform)
            return _Item(transform, row, text=str(erase), erase=erase)
        step = row.read(transform)
    except (NotLowerable, AttributeError) as verdict:  # an object of another version may lack an attribute
        return _Item(
            transform, row, text=name, problem=f"{verdict}; runs as Python with everything around it"
        )
    return _Item(transform, row, geometry.Placed(step), text=str(step))


def _unknown_reason(transform: Any) -> str:
    base = known_base(transform)
    if base is not None:
        return (
            f"a subclass of {base.__name__}, which may do anything; runs as Python with everything around it"
        )
    if type(transform) in CONTAINERS:
        customised = _customised(transform) or f"nested more than {MAX_DEPTH} deep"
        return f"{customised}; runs as Python with everything around it"
    return NO_NATIVE_FORM


def _customised(transform: Any) -> str | None:
    """Why an instance may not do what its class does; None when nothing was changed on it."""
    attributes = vars(transform) if hasattr(transform, "__dict__") else {}
    if attributes.get("_forward_hooks") or attributes.get("_forward_pre_hooks"):
        return "has forward hooks"
    if attributes.get("_compiled_call_impl") is not None:
        return "is compiled"
    replaced = [name for name in attributes if callable(getattr(type(transform), name, None))]
    if replaced:
        return f"{', '.join(sorted(replaced))} replaced on this object"
    foreign = [
        name for name in _working_methods(transform) if not _is_librarys(getattr(type(transform), name))
    ]
    return f"{', '.join(foreign)} replaced on its class" if foreign else None


def _working_methods(transform: Any) -> list[str]:
    """The methods that make a transform what it is, as far as it has them."""
    names = ("forward", "transform", "make_params", "get_params")
    wanted = names if isinstance(transform, nn.Module) else ("__call__",)
    return [name for name in wanted if hasattr(type(transform), name)]


def _is_librarys(method: Any) -> bool:
    return str(getattr(method, "__module__", "")).partition(".")[0] in ("torch", "torchvision")


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
    moved = [(item, item.placed) for item in items if item.placed is not None]
    verdicts = geometry.check_geometry([placed for _, placed in moved])
    for (item, _), verdict in zip(moved, verdicts, strict=True):
        item.problem = item.problem or verdict.problem
        item.note = verdict.note
        if verdict.step is not None:
            item.text = str(verdict.step)
    return verdicts


def _check_erasing(items: Sequence[_Item]) -> RandomErasing | None:
    """The erasing at the end, if there is one; elsewhere it is a problem."""
    for i, item in enumerate(items):
        if item.erase is not None:
            rest = items[i + 1 :]
            if all(type(after.transform) in UNCHANGING for after in rest):
                return item.erase
            item.problem = NOT_LAST
    return None


def _holds(dtype: torch.dtype, erase: RandomErasing) -> bool:
    # What torch makes of a float outside of uint8's range depends on the processor.
    if dtype.is_floating_point:
        return True
    return erase.value is not None and all(0 <= value <= 255 for value in erase.value)


def _native_notes(items: Sequence[_Item]) -> tuple[StepNote, ...]:
    notes = []
    for item in items:
        if isinstance(item.row, Geometry):
            notes.append(StepNote(item.text, item.note, parity_text(item.row.parity)))
        else:
            reason = ERASED if isinstance(item.row, Erasing) else IN_TABLE
            notes.append(StepNote(item.text, reason, "exact", suffix=True))
    return tuple(notes)


def _refused_notes(items: Sequence[_Item]) -> tuple[StepNote, ...]:
    return tuple(
        StepNote(item.text, item.problem or HAS_NATIVE_FORM, refused=bool(item.problem)) for item in items
    )


def _not_tensors(step: str) -> StepNote:
    return StepNote(
        step, "gives PIL images, which can't be stacked to batches: end with ToTensor()", refused=True
    )


def _pointwise_text(transform: Any, row: Pointwise) -> str:
    shown = ", ".join(f"{name} {_value_text(getattr(transform, name, None))}" for name in row.shown)
    return f"{type(transform).__name__}({shown})"


def _value_text(value: Any) -> str:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    if isinstance(value, (list, tuple)) and all(isinstance(v, (int, float)) for v in value):
        return f"({', '.join(f'{v:.4g}' for v in value)})"
    return " ".join(str(value).split())
