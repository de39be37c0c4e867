"""Plans who does which part, from a dataset and the options of a loader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import default_collate
from torchvision import transforms as v1

from headrace._torch_compat import default_collation_changed
from headrace.errors import ConfigError
from headrace.plan.pointwise import OUTPUT_DTYPES, PointwiseTable, cast_table
from headrace.plan.recognize import recognize_dataset
from headrace.plan.segments import (
    BatchSegment,
    CollateSegment,
    DatasetSegment,
    ErasingStep,
    GatherSegment,
    Layout,
    NativeSegment,
    Plan,
    Segment,
    Step,
    ValueSegment,
    Where,
)
from headrace.plan.transform import IN_TABLE, LoweredTransform, lower_transform, lower_values
from headrace.sources.kinds import InTensors, Reading, Recognized, Refusal
from headrace.sources.source import TensorRows
from headrace.transforms.origin import located
from headrace.transforms.own_code import collates_first


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
        collate_fn: the user's, or None or torch's `default_collate` for the default.
        dtype: dtype that images are cast to after the transform, or None for no cast.
        memory_format: `torch.contiguous_format` or `torch.channels_last`.
        device: device that batches are copied to and values are made on, or None or the CPU for none.

    Raises:
        ConfigError: `dtype` or `memory_format` isn't one that batches of images come in.
    """
    check_output(dtype, memory_format)
    problems: tuple[Step, ...] = ()
    if batch_size is None:
        reason = "batch_size=None turns batching off: there is no batch to write into"
        problems = (Step("batching", reason, refused=True),)
    recognized = recognize_dataset(dataset)
    if isinstance(recognized, Refusal):
        return _refused_plan(recognized.what, recognized.reason, problems)
    output = _Output(dtype, memory_format, None if device is None or device.type == "cpu" else device)
    default = collate_fn is default_collate and not default_collation_changed()
    collate = None if default else collate_fn
    gather = _gather_plan(recognized, output) if batch_size is not None and collate is None else None
    if gather is not None:
        return gather
    if isinstance(recognized, InTensors):
        return _refused_plan(recognized.what, recognized.reason, problems)
    lowered = lower_transform(_as_on_images(recognized), recognized.size, recognized.mode)
    if not isinstance(lowered, LoweredTransform):
        return _as_written(recognized, lowered, problems)
    table = cast_table(lowered.table, dtype)
    if isinstance(table, str):
        problems += (Step(f"cast to {_name(dtype)}", table, refused=True),)
        table = lowered.table
    problems += _view_problems(lowered, output)
    if problems:
        return _as_written(recognized, lowered.steps, problems)
    if collate is not None and lowered.views == 1 and _collates_as_torch(collate, recognized, table):
        collate = None
    user = _collate_segment(recognized, table, collate)
    if collate is not None or lowered.views > 1:
        output = replace(output, device=None)  # a collate_fn gets what the transform gives, on the host
    segments = _native_segments(recognized, lowered, table, user, output)
    return Plan(tuple(segment for segment in segments if segment.steps))


@lru_cache(maxsize=64)  # the same one for every epoch
def _refused_plan(what: str, reason: str, problems: tuple[Step, ...]) -> Plan:
    """A dataset of a class that isn't known makes the samples."""
    return Plan((DatasetSegment(steps=(Step(what, reason, refused=True), *problems)),))


def _as_written(recognized: Recognized, steps: tuple[Step, ...], problems: tuple[Step, ...]) -> Plan:
    """The dataset's own code makes the samples, as native code can't do all `steps`, or has `problems`."""
    source = Step(recognized.what, recognized.note)
    # What native code would do with the steps that it knows doesn't matter here.
    steps = tuple(step if step.refused else Step(step.text) for step in (*steps, *problems))
    return Plan((DatasetSegment(steps=(source, *steps)),))


def _collates_as_torch(
    collate: Callable[[list[Any]], Any], recognized: Recognized, table: PointwiseTable
) -> bool:
    """Returns whether `collate` is timm's `fast_collate` and gives what torch's default collation would: it
    does for single uint8 images with integer labels."""
    module = sys.modules.get("timm.data.loader")
    known = module is not None and collate is getattr(module, "fast_collate", None)
    as_uint8 = table.dtype == torch.uint8
    if not known or not as_uint8 or recognized.target_transform is not None:
        return False
    image = torch.arange(6, dtype=torch.uint8).reshape(3, 1, 2)
    samples = [(image, 1), (image.flip(2), 0)]
    return all(
        torch.equal(theirs, ours) and theirs.dtype == ours.dtype
        for theirs, ours in zip(collate(samples), default_collate(samples), strict=True)
    )


def _as_on_images(recognized: Recognized) -> Any:
    """The transform of RGB images that does what the dataset's does with what its loader reads."""
    if recognized.decode is None:
        return recognized.transform
    rest = [] if recognized.transform is None else [recognized.transform]
    return v1.Compose([v1.PILToTensor(), *rest])


def with_batch_transform(
    plan: Plan, batch_transform: Callable[..., Any], device: torch.device | None = None
) -> Plan:
    """`plan` with the user's `batch_transform` at its end, which is called with whole batches."""
    where: Where = "python" if device is None or device.type == "cpu" else "device"
    reason = "called with each batch" + (" after the copy" if where == "device" else "")
    step = Step(f"batch_transform: {located(batch_transform)}", reason)
    return Plan((*plan.segments, BatchSegment(steps=(step,), where=where)))


def check_output(dtype: torch.dtype | None, memory_format: torch.memory_format) -> None:
    """Raises ConfigError for what batches of images don't come in."""
    if dtype is not None and dtype not in OUTPUT_DTYPES:
        allowed = ", ".join(str(d) for d in OUTPUT_DTYPES)
        raise ConfigError(
            f"dtype ({dtype}) must be one of {allowed}, or None to keep what the transform gives."
        )
    if memory_format not in (torch.contiguous_format, torch.channels_last):
        allowed = "torch.contiguous_format (the default) or torch.channels_last"
        raise ConfigError(f"memory_format ({memory_format}) must be {allowed}.")


@dataclass(frozen=True)
class _Output:
    """Arguments of `make_plan` on the result; the device is None for the CPU."""

    dtype: torch.dtype | None
    memory_format: torch.memory_format
    device: torch.device | None

    @property
    def layout(self) -> Layout:
        return "NHWC" if self.memory_format is torch.channels_last else "NCHW"

    @property
    def where(self) -> Where:
        """The place where values are made."""
        return "native" if self.device is None else "device"


def _gather_plan(dataset: Reading, output: _Output) -> Plan | None:
    """The plan of a dataset in memory of which a batch is a gather of rows, or None if its samples aren't
    rows of tensors, or its transform does more than to replace levels."""
    if isinstance(dataset, InTensors):
        return Plan((_gather_segment(dataset.what, dataset.rows),))
    if not isinstance(dataset, Recognized):
        return None
    rows = dataset.source.tensors()
    if rows is None or dataset.transform is None or dataset.target_transform is not None:
        return None
    lowered = lower_values(dataset.transform, rows.tensors[0].shape[1])
    if lowered is None:
        return None
    values, steps = lowered
    table = cast_table(values, output.dtype)
    # Fractions that a cast cuts off aren't the table's business: torch casts the batch.
    table = values if isinstance(table, str) else table
    replaced = ValueSegment(
        steps=(*steps, *_cast_steps(values.dtype, table.dtype)),
        table=table,
        memory_format=output.memory_format,
        where=output.where,
    )
    return Plan((_gather_segment(dataset.what, rows), replaced))


def _gather_segment(what: str, rows: TensorRows) -> GatherSegment:
    step = Step(what, "rows are gathered a batch at a time", "exact")
    return GatherSegment(steps=(step,), tensors=rows.tensors, rows=rows.rows)


def _native_segments(
    recognized: Recognized,
    lowered: LoweredTransform,
    table: PointwiseTable,
    user: CollateSegment,
    output: _Output,
) -> list[Segment]:
    """Native code writes whole batches; values are made there, or on the device after the copy. Segments
    without steps have nothing to do."""
    if user.collate is not None and collates_first(user.collate):
        last = Step(user.steps[-1].text, "collates its samples first: called with the finished batch")
        user = replace(user, steps=(*user.steps[:-1], last), collates_first=True)
    if user.collate is not None and user.by_pixel and not user.collates_first:
        output = replace(output, memory_format=torch.channels_last)  # as its samples are
    cast = _cast_steps(lowered.table.dtype, table.dtype)
    erase, number = lowered.erase, len(lowered.ops)
    erasing = None if erase is None else ErasingStep(erase, number, lowered.table.dtype)
    native = _native_segment(recognized, lowered)
    shape = f"[N, {', '.join(map(str, native.shape))}] {output.layout}"
    what = "batch" if user.collate is None else "images"
    if output.device is None:
        written = Step(f"{what}: {_name(table.dtype)} {shape}", "written directly into the batch", "exact")
        steps = (*native.steps, *lowered.table_steps, *cast, written)
        native = replace(native, steps=steps, table=table.values, dtype=table.dtype, layout=output.layout)
        after = ValueSegment(
            steps=lowered.erase_steps, table=None, erasing=erasing, memory_format=output.memory_format
        )
        return [native, after, user]
    written = Step(f"{what}: uint8 {shape}", "written directly into the batch", "exact")
    final = Step(f"images: {_name(table.dtype)} {shape}", "overlapped with the training step", "exact")
    saved = f", 1 byte a value rather than {table.dtype.itemsize}" if table.dtype.itemsize > 1 else ""
    copy = Step(f"to {output.device}", f"copied, overlapped with the training step{saved}", "exact")
    values = ValueSegment(
        steps=(copy, *lowered.table_steps, *cast, *lowered.erase_steps, final),
        table=table,
        erasing=erasing,
        memory_format=output.memory_format,
        where="device",
    )
    native = replace(native, steps=(*native.steps, written), layout=output.layout)
    return [native, user, values]


def _native_segment(recognized: Recognized, lowered: LoweredTransform) -> NativeSegment:
    """Returns the part of native code that makes the images themselves: uint8 pixels."""
    return NativeSegment(
        steps=(Step(recognized.what, recognized.note), *lowered.op_steps),
        source=recognized.source,
        ops=lowered.ops,
        height=lowered.height,
        width=lowered.width,
        mode=lowered.mode,
        upright=lowered.upright or recognized.upright,
        decode=recognized.decode,
        read=recognized.read,
        channels=lowered.channels,
        views=lowered.views,
    )


def _collate_segment(
    recognized: Recognized, table: PointwiseTable, collate: Callable[[list[Any]], Any] | None
) -> CollateSegment:
    steps = []
    if recognized.target_transform is not None:
        target = located(recognized.target_transform)
        steps.append(Step(f"target_transform: {target}", "called with each label"))
    if collate is not None:
        steps.append(Step(f"collate_fn: {located(collate)}", "called with the list of (image, target)"))
    return CollateSegment(
        steps=tuple(steps),
        target_transform=recognized.target_transform,
        collate=collate,
        sample_type=table.sample_type,
        by_pixel=table.by_pixel,
    )


def _view_problems(lowered: LoweredTransform, output: _Output) -> tuple[Step, ...]:
    if lowered.views == 1 or (output.dtype is None and output.layout == "NCHW"):
        return ()
    reason = "dtype and memory_format are for batches of one image a sample"
    return (Step(f"{lowered.views} images a sample", reason, refused=True),)


def _cast_steps(before: torch.dtype, after: torch.dtype) -> tuple[Step, ...]:
    return () if before == after else (Step(f"cast to {_name(after)}", IN_TABLE, "exact"),)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
