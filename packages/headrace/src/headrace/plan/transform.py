"""Lowers a transform to native operations and a table, if every step is understood."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from headrace.plan.pointwise import PointwiseTable, build_table, build_table_of_views
from headrace.plan.segments import Step
from headrace.records import Mode
from headrace.transforms import find_op, known_base
from headrace.transforms.changed import find_change
from headrace.transforms.colors import Grayscale
from headrace.transforms.levels import ExifTranspose, Identity, ToPureTensor, ToRGB, ToTensor
from headrace.transforms.lookup import container_of, read_op, steps_of
from headrace.transforms.op import (
    NO_EFFECT,
    NO_GRAY,
    UNKNOWN,
    Extent,
    ImageOp,
    LevelOp,
    NoNativeForm,
    Op,
    Settled,
    parity_of,
    parity_text,
)
from headrace.transforms.origin import located
from headrace.transforms.random_erasing import RandomErasing

# Deeper than anyone nests by hand; a list that contains itself ends here instead of never.
MAX_DEPTH = 32

NO_NATIVE_FORM = "no native implementation"
IN_TABLE = "fused into a lookup table of 256 levels"
READ_SO = "part of how files are read"


@dataclass(frozen=True, eq=False)
class LoweredTransform:
    """A transform that native code can do all of: operations, then a table of levels.

    Attributes:
        mode, upright: how native code reads files; see `headrace.plan.segments.NativeSegment`.
        ops: operations that native code does on the decoded image.
        height, width, channels, views: size, channels (3 or 1) and number of the images after them.
        table: value of each level after the pointwise transforms at the end.
        erase: what overwrites part of the values, if anything does.
        op_steps, table_steps, erase_steps: the same in words.
    """

    mode: Mode
    upright: bool
    ops: tuple[ImageOp, ...]
    height: int
    width: int
    channels: int
    views: int
    table: PointwiseTable
    erase: RandomErasing | None
    op_steps: tuple[Step, ...]
    table_steps: tuple[Step, ...]
    erase_steps: tuple[Step, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """All of it in words, in the order in which it runs."""
        return (*self.op_steps, *self.table_steps, *self.erase_steps)


@dataclass
class _Item:
    """A transform on its way through the planner.

    Attributes:
        op: op that it was read as, or None if it isn't known.
        settled: how an image op runs in its place.
        channels: channels of the image after it.
        on_tensor: whether it is called with a tensor, or makes one.
        on_levels: whether it was read as an op on a uint8 tensor of the image's levels.
        reads: whether it is part of how files are read.
    """

    transform: Any
    op: Op | None = None
    settled: Settled | None = None
    text: str = ""
    problem: str = ""
    channels: int = 3
    on_tensor: bool = False
    on_levels: bool = False
    reads: bool = False


@dataclass(frozen=True)
class _Images:
    """The images that the dataset gives the transform."""

    size: Extent
    mode: Mode
    upright: bool = False

    @property
    def channels(self) -> int:
        """Channels of each of them."""
        return 1 if self.mode == "L" else 3


def lower_transform(
    transform: Any, size: Extent = UNKNOWN, mode: Mode = "RGB"
) -> LoweredTransform | tuple[Step, ...]:
    """Returns how native code does `transform` on images of `size`. If it can't do all of it, returns the
    steps in words, with the reasons why not."""
    items = [] if transform is None else _read_all(transform)
    images = _fold_reading(items, _Images(size, mode))
    _settle(items, images)
    if any(item.problem for item in items):
        return _steps_as_written(items)
    settled = [item.settled for item in items if item.settled is not None]
    extent = settled[-1].extent if settled else images.size
    of_images = [item for item in items if not isinstance(item.op, (LevelOp, RandomErasing))]
    table = _table_of(items, extent)
    if not isinstance(table, PointwiseTable):
        return (*_steps_as_written(items), table)
    return LoweredTransform(
        mode=images.mode,
        upright=images.upright,
        ops=tuple(each.op for each in settled if each.op is not None),
        height=extent.height,
        width=extent.width,
        channels=table.channels,
        views=_views_of(items),
        table=table,
        erase=_erasing_of(items),
        op_steps=tuple(map(_native_step, of_images)),
        table_steps=tuple(_native_step(item) for item in items if isinstance(item.op, LevelOp)),
        erase_steps=tuple(_native_step(item) for item in items if isinstance(item.op, RandomErasing)),
    )


def _fold_reading(items: Sequence[_Item], images: _Images) -> _Images:
    """`images` with the steps at the beginning that concern the reading of files."""
    for item in items:
        if isinstance(item.op, ExifTranspose):
            images = replace(images, upright=True)
        elif item.op == Grayscale(1):
            images = replace(images, mode="L")
        elif not isinstance(item.op, Identity) or (isinstance(item.op, ToRGB) and images.mode == "L"):
            break
        item.reads = not isinstance(item.op, Identity)
    return images


def _table_of(items: Sequence[_Item], extent: Extent) -> PointwiseTable | Step:
    """The table that ends `items`, each of which native code could do alone, or why there is none. They give
    images of `extent`."""
    levels = [item for item in items if isinstance(item.op, LevelOp)]
    if not levels:
        return Step("output", "gives PIL images rather than tensors", refused=True)
    if not extent.exact:
        reason = "size varies with the image: give Resize both sizes, or crop at the end"
        return Step("output", reason, refused=True)
    # What hands on an image, or makes RGB of it, has been counted before the conversion to a tensor.
    transforms = [item.transform for item in levels if item.on_tensor or not isinstance(item.op, Identity)]
    views = _views_of(items)
    made = build_table if views == 1 else partial(build_table_of_views, views)
    table = made(transforms, items[-1].channels)
    if isinstance(table, str):
        return Step(", ".join(item.text for item in levels), table, refused=True)
    erase = _erasing_of(items)
    if erase is not None and not _holds(table.dtype, erase):
        return Step(str(erase), "may erase with what uint8 doesn't hold", refused=True)
    return table


def _erasing_of(items: Sequence[_Item]) -> RandomErasing | None:
    return next((item.op for item in items if isinstance(item.op, RandomErasing)), None)


def _views_of(items: Sequence[_Item]) -> int:
    """The number of images that `items` make of one."""
    return next((item.op.views for item in items if isinstance(item.op, ImageOp) and item.op.views > 1), 1)


def lower_values(transform: Any, channels: int) -> tuple[PointwiseTable, tuple[Step, ...]] | None:
    """The table of a transform that has pointwise steps only, for images of 3 (RGB) or 1 (L) channels."""
    items = _read_all(transform)
    if any(item.problem or not isinstance(item.op, LevelOp) for item in items):
        return None
    table = build_table([item.transform for item in items], channels)
    return None if isinstance(table, str) else (table, tuple(map(_native_step, items)))


def _read_all(transform: Any) -> list[_Item]:
    """The transforms inside containers, in the order in which they are called."""
    items: list[_Item] = []
    for each in _flat(transform):
        items.append(each if isinstance(each, _Item) else _read(each, items))
    return items


def _flat(transform: Any, depth: int = 0) -> Iterator[Any]:
    """Transforms that aren't containers, and items for those that can't be read."""
    try:
        steps = steps_of(transform) if depth < MAX_DEPTH else None
    except Exception as error:
        yield _unreadable(transform, error)
        return
    if steps is None:
        yield transform
    for inner in steps or ():
        yield from _flat(inner, depth + 1)


def _unreadable(transform: Any, error: Exception) -> _Item:
    problem = f"can't be read: {type(error).__name__}: {error}"
    return _Item(transform, text=type(transform).__name__, problem=problem)


def _read(transform: Any, before: Sequence[_Item]) -> _Item:
    """Reads a transform. That runs other people's code, which may raise anything: it is Python then, and
    raises that for a sample, if at all."""
    text = type(transform).__name__
    try:
        kind: Any = find_op(type(transform))
        text = located(transform)
        if kind is None:
            raise NoNativeForm(_unknown_reason(transform))
        on_levels = issubclass(kind, ImageOp) and _gives_levels(before)
        op = read_op(kind, transform, on_tensor=on_levels)
        return _Item(transform, op, text=str(op), on_levels=on_levels)
    except NoNativeForm as verdict:
        return _Item(transform, text=text, problem=str(verdict))
    except Exception as error:
        return _unreadable(transform, error)


def _gives_levels(items: Sequence[_Item]) -> bool:
    """Returns whether `items` make a uint8 tensor of the image's own levels."""
    if not any(isinstance(item.op, ToTensor) for item in items):
        return False
    table = build_table([item.transform for item in items if isinstance(item.op, LevelOp)])
    return isinstance(table, PointwiseTable) and table.values is None


def _unknown_reason(transform: Any) -> str:
    base = known_base(transform)
    if base is not None:
        return f"a subclass of {base.__name__}, which may do anything"
    if container_of(type(transform)):
        return find_change(transform) or f"nested more than {MAX_DEPTH} deep"
    return NO_NATIVE_FORM


def _settle(items: Sequence[_Item], images: _Images) -> None:
    """Decides on each op in its place, the first of them on `images`. After one with a problem the next is
    judged as if it had run."""
    extent, channels, on_tensor = images.size, images.channels, False
    for i, item in enumerate(items):
        # All others leave an image an image, or raise an error for one (which the table's making finds out).
        item.on_tensor = on_tensor = on_tensor or isinstance(item.op, ToTensor)
        if isinstance(item.op, ImageOp) and not item.reads:
            on_values = on_tensor and not (item.on_levels and channels == 3)
            item.settled = item.op.settle(extent, on_tensor=on_values)
            item.problem = item.settled.problem or _channels_problem(item, channels)
            extent = item.settled.extent
            channels = item.op.channels(channels) or channels
            if item.settled.op is not None:
                item.text = str(item.settled.op)
        elif isinstance(item.op, ToRGB) and not on_tensor:
            channels = 3
        elif isinstance(item.op, ExifTranspose) and not item.reads:
            item.problem = "turns the image after other steps; put it first"
        elif isinstance(item.op, RandomErasing):
            last = all(isinstance(after.op, (ToPureTensor, Identity)) for after in items[i + 1 :])
            item.problem = NO_GRAY if channels == 1 else ""
            if not last:
                item.problem = "erases before other steps; put it at the end"
        if isinstance(item.op, (ImageOp, RandomErasing)) and _views_of(items[:i]) > 1:
            item.problem = "comes after a crop into several images"
        item.channels = channels


def _channels_problem(item: _Item, channels: int) -> str:
    """Reason why native code can't do an image op on images of so many channels, or ""."""
    op = item.op
    assert isinstance(op, ImageOp)
    if item.on_tensor:
        return ""  # what works on tensors of one channel as on those of three moves pixels only
    if not op.channels(channels):
        return "gives images of one channel or of three, by chance"
    return (op.gray_problem or _fill_problem(item.transform)) if channels == 1 else ""


def _fill_problem(transform: Any) -> str:
    """Reason why a transform may fill in another color, or fail, if images have one channel, or ""."""
    if any(cls.__module__.startswith("timm.") for cls in type(transform).__mro__):
        return NO_GRAY
    fill = getattr(transform, "fill", 0)
    if fill is not None and (type(fill) not in (int, float) or not 0 <= fill <= 255):
        return f"fill={fill!r} isn't one level, as an image of one channel needs it"
    inside = getattr(transform, "transforms", ())
    return next(filter(None, map(_fill_problem, inside)), "")


def _holds(dtype: torch.dtype, erase: RandomErasing) -> bool:
    # What torch makes of a float outside of uint8's range depends on the processor.
    if dtype.is_floating_point:
        return True
    return erase.value is not None and all(0 <= value <= 255 for value in erase.value)


def _native_step(item: _Item) -> Step:
    if item.reads:
        return Step(item.text, READ_SO, "exact")
    if isinstance(item.op, ToRGB) and not item.on_tensor:
        return Step(item.text, "gray becomes three equal channels, RGB stays", "exact")
    if isinstance(item.op, ImageOp):
        runs = item.settled is None or item.settled.op is not None
        return Step(item.text, "" if runs else NO_EFFECT, parity_text(parity_of(item.op)))
    if isinstance(item.op, Identity):
        return Step(item.text, "changes nothing", "exact")
    erases = isinstance(item.op, RandomErasing)
    return Step(item.text, "drawn by sample, written into the batch" if erases else IN_TABLE, "exact")


def _steps_as_written(items: Sequence[_Item]) -> tuple[Step, ...]:
    """Returns the steps in words, each with its problem, if it has one."""
    return tuple(Step(item.text, item.problem, refused=bool(item.problem)) for item in items)
