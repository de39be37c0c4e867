"""Who runs what: the plan that executors take, the decisions behind it, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch.utils.data import default_collate

from headrace.errors import ConfigError
from headrace.plan.gather import GatherPlan, plan_gather
from headrace.plan.logical import Step
from headrace.plan.origin import describe_callable, located
from headrace.plan.pointwise import OUTPUT_DTYPES, PointwiseTable, cast_table
from headrace.plan.recognise import Recognised, Refusal, recognise_source
from headrace.plan.suffix import ErasingStep, Suffix
from headrace.plan.transform import (
    HAS_NATIVE_FORM,
    IN_TABLE,
    LoweredTransform,
    RefusedTransform,
    lower_transform,
)
from headrace.records import EntryPoints
from headrace.sources.source import Source

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
        source: files and labels.
        steps: geometry on 8-bit RGB, in order; legal by `headrace.plan.geometry`.
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
    steps: tuple[Step, ...]
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


@dataclass(frozen=True)
class PythonPlan:
    """The dataset runs as the user wrote it.

    Attributes:
        reasons: why native code can't do it, at least one.
        dtype: a cast that the user asked for, still to be made on floating-point batches; None: none.
        memory_format: what the user asked for.
    """

    reasons: tuple[str, ...]
    dtype: torch.dtype | None = None
    memory_format: torch.memory_format = torch.contiguous_format


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
) -> Plan:
    """Decides where each step of `dataset` runs. Reads attributes of the dataset, and none of its samples.

    Args:
        dataset: any torch dataset.
        batch_size: None turns automatic batching off, as in torch; with a batch sampler pass any int.
        collate_fn: the user's; None or torch's `default_collate` for the default.
        dtype: cast the images to this after the transform.
        memory_format: `torch.contiguous_format` or `torch.channels_last`.
        device: that batches are copied to; None or the CPU: none. What works on values is then done there.

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
        return _python_plan((head, *problems), dtype, memory_format)
    head = Decision(recognised.what, "native", recognised.note, source=True)
    lowered = lower_transform(recognised.transform)
    lines = [Decision(n.step, "native", n.reason, n.parity, refused=n.refused) for n in lowered.notes]
    if isinstance(lowered, RefusedTransform):
        return _python_plan((head, *lines, *problems), dtype, memory_format)
    table = cast_table(lowered.pointwise, dtype)
    if isinstance(table, str):
        problems = (*problems, Decision(f"cast to {_name(dtype)}", "python", table, refused=True))
    elif not problems:
        # A collation of the user's own is given what the transform gives, on the host.
        to = None if device is None or device.type == "cpu" or collate is not None else device
        native = _native_plan(recognised, lowered, table, layout, collate, on_device=to is not None)
        return Plan((head, *_placed_decisions(lines, lowered, native, to)), native=native)
    return _python_plan((head, *lines, *problems), dtype, memory_format)


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


def _python_plan(
    decisions: Sequence[Decision], dtype: torch.dtype | None, memory_format: torch.memory_format
) -> Plan:
    lines = tuple(replace(d, where="python", reason=_python_reason(d), parity="") for d in decisions)
    reasons = tuple(f"{d.step}: {d.reason}" for d in lines if d.refused)
    return Plan(lines, python=PythonPlan(reasons, dtype, memory_format))


def _python_reason(decision: Decision) -> str:
    if decision.source and not decision.refused:
        return ""  # what was said is how native code would read it
    return decision.reason if decision.refused else HAS_NATIVE_FORM


def _native_plan(
    recognised: Recognised,
    lowered: LoweredTransform,
    table: PointwiseTable,
    layout: Layout,
    collate: Callable[[list[Any]], Any] | None,
    *,
    on_device: bool,
) -> NativePlan:
    erasing = None
    if lowered.erase is not None:
        erasing = ErasingStep(lowered.erase, len(lowered.steps), lowered.pointwise.dtype)
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


def _placed_decisions(
    lines: Sequence[Decision], lowered: LoweredTransform, native: NativePlan, device: torch.device | None
) -> list[Decision]:
    """`lines` in the order in which they are run, where they are run, and what comes of them."""
    casts = []
    if native.final_dtype != lowered.pointwise.dtype:
        casts.append(Decision(f"cast to {_name(native.final_dtype)}", "native", IN_TABLE, "exact"))
    if device is None:
        return [*lines, *casts, *_output_decisions(native)]
    values = [line for line, note in zip(lines, lowered.notes, strict=True) if note.suffix]
    size, final = native.final_dtype.itemsize, _shape_text(native, native.final_dtype)
    saved = f", 1 byte a value rather than {size}" if size > 1 else ""
    return [
        *(line for line, note in zip(lines, lowered.notes, strict=True) if not note.suffix),
        *_output_decisions(native),
        Decision(f"to {device}", "device", f"copied beside the training step{saved}", "exact"),
        *(replace(line, where="device") for line in (*values, *casts)),
        Decision(f"images: {final}", "device", "made beside the training step", "exact"),
    ]


def _output_decisions(native: NativePlan) -> list[Decision]:
    lines = []
    if native.target_transform is not None:
        target = located(describe_callable(native.target_transform), native.target_transform)
        lines.append(Decision(f"target_transform: {target}", "python", "called with each label"))
    shape = _shape_text(native, native.dtype)
    if native.collate is None:
        lines.append(Decision(f"batch: {shape}", "native", "written in place", "exact"))
    else:
        collate = located(describe_callable(native.collate), native.collate)
        lines.append(Decision(f"images: {shape}", "native", "written in place", "exact"))
        lines.append(Decision(f"collate_fn: {collate}", "python", "called with the list of (image, target)"))
    return lines


def _shape_text(native: NativePlan, dtype: torch.dtype) -> str:
    return f"{_name(dtype)} [N, 3, {native.height}, {native.width}] {native.layout}"


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
