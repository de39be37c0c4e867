"""Who runs what: the plan that executors take, the decisions behind it, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.utils.data import default_collate

from headrace.errors import ConfigError
from headrace.plan.gather import GatherPlan, plan_gather
from headrace.plan.origin import describe_callable, located
from headrace.plan.pixels import sees_pixels_only
from headrace.plan.pointwise import OUTPUT_DTYPES, PointwiseTable, cast_table
from headrace.plan.recognise import Recognised, Refusal, recognise_source
from headrace.plan.suffix import ErasingStep, Suffix
from headrace.plan.transform import (
    IN_TABLE,
    LoweredTransform,
    SplitTransform,
    StepNote,
    lower_transform,
)
from headrace.records import EntryPoints
from headrace.sources.source import Source
from headrace.transforms.op import Extent, ImageOp

Where = Literal["native", "python", "device"]
Layout = Literal["NCHW", "NHWC"]


@dataclass(frozen=True)
class Decision:
    """One line of the plan: a step, where it runs, and why.

    Attributes:
        step: the step in words, e.g. ``Resize(256×256, bilinear)``.
        where: "native" (C++ threads, no GIL), "python" (the user's code) or "device".
        reason: why it runs there; empty where nothing needs saying.
        parity: how its result compares with torchvision's, e.g. ``exact (Pillow 13.0)``; empty for Python.
        source: True for the line that names the data rather than something done to it.
        refused: True for a step that keeps a pipeline from running natively.
    """

    step: str
    where: Where
    reason: str = ""
    parity: str = ""
    source: bool = False
    refused: bool = False


@dataclass(frozen=True, eq=False)
class NativePlan:
    """What the native engine needs to know, all of it.

    Attributes:
        source: images and labels.
        steps: on 8-bit RGB, in order.
        height, width: of every output, in pixels.
        table: [3, 256] of `dtype`, the value of each level of each channel; None: the level itself (uint8).
        dtype: that native code writes: uint8, float16, bfloat16 or float32. uint8 where the table is left to
            the device.
        layout: "NCHW" (contiguous) or "NHWC" (`torch.channels_last`).
        sample_type: what one sample's image is before collation: `torch.Tensor`, or `tv_tensors.Image` where
            the user's transform ends in that. A custom `collate` must be given this; torch's own makes plain
            tensors of both.
        target_transform: the user's, to be called with the label (an int) of each sample; None: the label.
        collate: the user's, to be called with the list of (image, target); None: torch's default.
        entries: entry points of the source's files; None: none.
        suffix: what is done to each batch that native code has written, by `headrace.device.postprocess`;
            None: nothing.
    """

    source: Source
    steps: tuple[ImageOp, ...]
    height: int
    width: int
    table: torch.Tensor | None = field(repr=False)
    dtype: torch.dtype
    layout: Layout
    sample_type: type[torch.Tensor]
    target_transform: Callable[[int], Any] | None
    collate: Callable[[list[Any]], Any] | None
    entries: EntryPoints | None = field(default=None, repr=False)
    suffix: Suffix | None = None

    def __post_init__(self) -> None:
        if self.dtype not in OUTPUT_DTYPES:
            raise ValueError(f"dtype {self.dtype} isn't one that native code writes")
        if self.table is None and self.dtype != torch.uint8:
            raise ValueError(f"{self.dtype} needs a table of levels")
        if self.table is not None and (self.table.shape != (3, 256) or self.table.dtype != self.dtype):
            raise ValueError(
                f"table must be [3, 256] of {self.dtype}, not {list(self.table.shape)} {self.table.dtype}"
            )

    @property
    def sample_nbytes(self) -> int:
        """Memory of one image as native code writes it, in bytes."""
        return 3 * self.height * self.width * self.dtype.itemsize

    @property
    def final_dtype(self) -> torch.dtype:
        """Of the images that the user gets: `dtype`, or that of the suffix's table."""
        return self.dtype if self.suffix is None or self.suffix.table is None else self.suffix.table.dtype


@dataclass(frozen=True, eq=False)
class SplitPlan:
    """What native code does in the worker that makes a sample, and what the user's Python does after it.

    Attributes:
        prefix: makes uint8 pictures of layout "NHWC" and no table; where `varies`, their height and width
            depend on the picture, and those of `prefix` mean nothing.
        varies: see above.
        middle: the user's transforms after that, called one after another with a PIL RGB image.
        suffix: the user's transforms that end the pipeline, for what `pointwise` isn't made for.
        pointwise: what becomes of an RGB picture after `middle`; None: it stays what it is.
        table: `pointwise` with the loader's cast behind it.
        erasing: what overwrites part of that; None: nothing.
        layout: of batches made by `table`.
        on_device: `table` and `erasing` are for the device.
        keeps_info: `middle` may look at more than pixels: at what the file says of itself.
    """

    prefix: NativePlan
    varies: bool
    middle: tuple[Callable[[Any], Any], ...]
    suffix: tuple[Callable[[Any], Any], ...]
    pointwise: PointwiseTable | None
    table: PointwiseTable | None
    erasing: ErasingStep | None
    layout: Layout
    on_device: bool
    keeps_info: bool


@dataclass(frozen=True)
class PythonPlan:
    """Samples are made by the user's Python, in workers.

    Attributes:
        reasons: why native code can't do all of it, at least one.
        dtype: a cast that the user asked for, still to be made on floating-point batches; None: none.
        memory_format: what the user asked for.
        split: what native code does in the workers; None: the dataset runs as it is.
    """

    reasons: tuple[str, ...]
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    split: SplitPlan | None = None


@dataclass(frozen=True)
class Plan:
    """What planning gave: one of `native`, `gather` and `python`, and every decision on the way."""

    decisions: tuple[Decision, ...]
    native: NativePlan | None = None
    gather: GatherPlan | None = None
    python: PythonPlan | None = None

    def __post_init__(self) -> None:
        if [self.native, self.gather, self.python].count(None) != 2:
            raise ValueError("a plan is either native, a gather, or Python")

    @property
    def split(self) -> SplitPlan | None:
        """What native code does of samples that the user's Python makes; None: nothing."""
        return None if self.python is None else self.python.split

    @property
    def suffix(self) -> Suffix | None:
        """What is done to whole batches; None: nothing."""
        made = self.native or self.gather
        return None if made is None else made.suffix


def make_plan(
    dataset: Any,
    *,
    batch_size: int | None = 1,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    device: torch.device | None = None,
    split: bool = True,
) -> Plan:
    """Decides where each step of `dataset` runs. Reads attributes of the dataset, and none of its samples.

    Args:
        dataset: any torch dataset.
        batch_size: None turns automatic batching off, as in torch; with a batch sampler pass any int.
        collate_fn: the user's; None or torch's `default_collate` for the default.
        dtype: cast the images to this after the transform.
        memory_format: `torch.contiguous_format` or `torch.channels_last`.
        device: that batches are copied to; None or the CPU: none. What works on values is then done there.
        split: whether native code may do parts; False: everything or nothing.

    Raises:
        ConfigError: `dtype` or `memory_format` isn't one that batches of images come in.
    """
    layout = _check_output(dtype, memory_format)
    collate = None if collate_fn is default_collate else collate_fn
    gather = plan_gather(dataset) if batch_size is not None and collate is None else None
    if gather is not None:
        to = None if device is None or device.type == "cpu" else device
        return _gather_plan(gather, dtype, memory_format, to)
    recognised = recognise_source(dataset)
    problems = _batching_refusals(batch_size)
    if isinstance(recognised, Refusal):
        head = Decision(recognised.what, "python", recognised.reason, source=True, refused=True)
        return _python_plan((head, *problems), PythonPlan((), dtype, memory_format))
    head = Decision(recognised.what, "native", recognised.note, source=True)
    lowered = lower_transform(recognised.transform, recognised.size)
    lines = [_decision(note) for note in lowered.notes]
    table = None if lowered.pointwise is None else cast_table(lowered.pointwise, dtype)
    if isinstance(table, str):
        problems = (*problems, Decision(f"cast to {_name(dtype)}", "python", table, refused=True))
        table = lowered.pointwise
    # A collation of the user's own is given what the transform gives, on the host.
    to = None if device is None or device.type == "cpu" or collate is not None or problems else device
    if table is not None and isinstance(lowered, LoweredTransform) and not problems:
        native = _native_plan(recognised, lowered, table, layout, collate, on_device=to is not None)
        return Plan((head, *_placed_decisions(lines, lowered, native, to)), native=native)
    if not split:
        lines = [replace(line, where="python", parity="") for line in (head, *lines, *problems)]
        return _python_plan(lines, PythonPlan((), dtype, memory_format))
    parts = _split_plan(recognised, lowered, table, layout, collate, on_device=to is not None)
    lines = [head, *_split_decisions(lines, lowered, parts, to), *problems]
    return _python_plan(lines, PythonPlan((), dtype, memory_format, parts))


def with_batch_transform(
    plan: Plan, batch_transform: Callable[..., Any], device: torch.device | None = None
) -> Plan:
    """`plan` with a line for the user's `batch_transform`, which is called with whole batches at its end."""
    text = located(describe_callable(batch_transform), batch_transform)
    where: Where = "python" if device is None or device.type == "cpu" else "device"
    reason = "called with each batch" + (" after the copy" if where == "device" else "")
    return replace(plan, decisions=(*plan.decisions, Decision(f"batch_transform: {text}", where, reason)))


def _gather_plan(
    gather: GatherPlan,
    dtype: torch.dtype | None,
    memory_format: torch.memory_format,
    device: torch.device | None,
) -> Plan:
    line = Decision(gather.what, "native", "rows are gathered a batch at a time", "exact", source=True)
    if gather.values is None:
        return Plan((line,), gather=gather)
    table = cast_table(gather.values, dtype)
    cast = "" if isinstance(table, str) else _name(table.dtype)
    # Fractions that a cast cuts off aren't the table's business: torch casts the batch.
    values = gather.values if isinstance(table, str) else table
    suffix = Suffix(values.values, None, memory_format, on_device=device is not None)
    lines = [Decision(n.step, "native", n.reason, n.parity) for n in gather.notes]
    if cast and values.dtype != gather.values.dtype:
        lines.append(Decision(f"cast to {cast}", "native", IN_TABLE, "exact"))
    if device is not None:
        lines = [replace(each, where="device") for each in lines]
    return Plan((line, *lines), gather=replace(gather, suffix=suffix))


def _check_output(dtype: torch.dtype | None, memory_format: torch.memory_format) -> Layout:
    if dtype is not None and dtype not in OUTPUT_DTYPES:
        allowed = ", ".join(str(d) for d in OUTPUT_DTYPES)
        raise ConfigError(
            f"dtype ({dtype}) must be one of {allowed}, or None to keep what the transform gives."
        )
    if memory_format is torch.contiguous_format:
        return "NCHW"
    if memory_format is torch.channels_last:
        return "NHWC"
    allowed = "torch.contiguous_format (the default) or torch.channels_last"
    raise ConfigError(f"memory_format ({memory_format}) must be {allowed}.")


def _batching_refusals(batch_size: int | None) -> tuple[Decision, ...]:
    if batch_size is not None:
        return ()
    reason = "batch_size=None turns batching off: there is no batch to write into"
    return (Decision("batching", "python", reason, refused=True),)


def _python_plan(decisions: Sequence[Decision], plan: PythonPlan) -> Plan:
    reasons = tuple(f"{d.step}: {d.reason}" for d in decisions if d.refused)
    return Plan(tuple(decisions), python=replace(plan, reasons=reasons))


def _decision(note: StepNote) -> Decision:
    where: Where = "python" if note.python else "native"
    return Decision(note.step, where, note.reason, note.parity, refused=note.refused)


def _split_plan(
    recognised: Recognised,
    lowered: LoweredTransform | SplitTransform,
    table: PointwiseTable | None,
    layout: Layout,
    collate: Callable[[list[Any]], Any] | None,
    *,
    on_device: bool,
) -> SplitPlan:
    if isinstance(lowered, LoweredTransform):
        extent = Extent(lowered.height, lowered.width, exact=True)
        middle: tuple[Callable[[Any], Any], ...] = ()
        suffix = middle
    else:
        extent, middle, suffix = lowered.extent, lowered.middle, lowered.suffix
    prefix = NativePlan(
        source=recognised.source,
        steps=lowered.steps,
        height=extent.height,
        width=extent.width,
        table=None,
        dtype=torch.uint8,
        layout="NHWC",
        sample_type=torch.Tensor,
        target_transform=recognised.target_transform,
        collate=collate,
        entries=recognised.entries,
    )
    return SplitPlan(
        prefix=prefix,
        varies=not extent.exact,
        middle=middle,
        suffix=suffix,
        pointwise=lowered.pointwise,
        table=table,
        erasing=_erasing_step(lowered),
        layout=layout,
        on_device=on_device,
        keeps_info=not all(map(sees_pixels_only, middle)),
    )


def _native_plan(
    recognised: Recognised,
    lowered: LoweredTransform,
    table: PointwiseTable,
    layout: Layout,
    collate: Callable[[list[Any]], Any] | None,
    *,
    on_device: bool,
) -> NativePlan:
    erasing = _erasing_step(lowered)
    left = table.values if on_device else None
    memory_format = torch.channels_last if layout == "NHWC" else torch.contiguous_format
    suffix = Suffix(left, erasing, memory_format, on_device)
    return NativePlan(
        source=recognised.source,
        steps=lowered.steps,
        height=lowered.height,
        width=lowered.width,
        table=None if on_device else table.values,
        dtype=torch.uint8 if on_device else table.dtype,
        layout=layout,
        sample_type=table.sample_type,
        target_transform=recognised.target_transform,
        collate=collate,
        entries=recognised.entries,
        suffix=None if left is None and erasing is None else suffix,
    )


def _erasing_step(lowered: LoweredTransform | SplitTransform) -> ErasingStep | None:
    if lowered.erase is None or lowered.pointwise is None:
        return None
    return ErasingStep(lowered.erase, len(lowered.steps), lowered.pointwise.dtype)


def _placed_decisions(
    lines: Sequence[Decision], lowered: LoweredTransform, native: NativePlan, device: torch.device | None
) -> list[Decision]:
    """`lines` in the order in which they are run, where they are run, and what comes of them."""
    casts = _cast_decisions(lowered.pointwise.dtype, native.final_dtype)
    shape = _shape_text(native, native.dtype)
    what = "batch" if native.collate is None else "images"
    written = Decision(f"{what}: {shape}", "native", "written in place", "exact")
    if device is None:
        return [*lines, *casts, written, *_user_decisions(native)]
    final = _shape_text(native, native.final_dtype)
    return [
        *(line for line, note in zip(lines, lowered.notes, strict=True) if not note.suffix),
        written,
        *_user_decisions(native),
        *_device_decisions(lines, lowered.notes, casts, device, native.final_dtype),
        Decision(f"images: {final}", "device", "made beside the training step", "exact"),
    ]


def _split_decisions(
    lines: Sequence[Decision],
    lowered: LoweredTransform | SplitTransform,
    split: SplitPlan,
    device: torch.device | None,
) -> list[Decision]:
    """The same of a split plan."""
    user = _user_decisions(split.prefix)
    if split.table is None or lowered.pointwise is None:
        return [*lines, *user]
    casts = _cast_decisions(lowered.pointwise.dtype, split.table.dtype)
    if device is None:
        return [*lines, *casts, *user]
    return [
        *(line for line, note in zip(lines, lowered.notes, strict=True) if not note.suffix),
        *user,
        *_device_decisions(lines, lowered.notes, casts, device, split.table.dtype),
    ]


def _device_decisions(
    lines: Sequence[Decision],
    notes: Sequence[StepNote],
    casts: Sequence[Decision],
    device: torch.device,
    final: torch.dtype,
) -> list[Decision]:
    """The copy, and what is done to values after it."""
    values = [line for line, note in zip(lines, notes, strict=True) if note.suffix]
    saved = f", 1 byte a value rather than {final.itemsize}" if final.itemsize > 1 else ""
    return [
        Decision(f"to {device}", "device", f"copied beside the training step{saved}", "exact"),
        *(replace(line, where="device") for line in (*values, *casts)),
    ]


def _cast_decisions(before: torch.dtype, after: torch.dtype) -> list[Decision]:
    return [] if before == after else [Decision(f"cast to {_name(after)}", "native", IN_TABLE, "exact")]


def _user_decisions(native: NativePlan) -> list[Decision]:
    """The user's functions besides the transform."""
    lines = []
    if native.target_transform is not None:
        target = located(describe_callable(native.target_transform), native.target_transform)
        lines.append(Decision(f"target_transform: {target}", "python", "called with each label"))
    if native.collate is not None:
        collate = located(describe_callable(native.collate), native.collate)
        lines.append(Decision(f"collate_fn: {collate}", "python", "called with the list of (image, target)"))
    return lines


def _shape_text(native: NativePlan, dtype: torch.dtype) -> str:
    return f"{_name(dtype)} [N, 3, {native.height}, {native.width}] {native.layout}"


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
