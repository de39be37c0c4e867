"""Plans who does which part, from a dataset and the options of a loader."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.utils.data import default_collate
from torchvision import transforms as v1

from headrace._torch_compat import default_collation_changed
from headrace.errors import ConfigError
from headrace.plan.gather import plan_gather
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
    S,
    Segment,
    Step,
    TransformSegment,
    ValueSegment,
    Where,
)
from headrace.plan.transform import IN_TABLE, LoweredTransform, lower_transform, sees_pixels_only
from headrace.sources.kinds import Recognized
from headrace.transforms.origin import describe_callable, located
from headrace.transforms.own_code import collates_first

Split = Literal["never", "ops", "always"]
NO_BATCHING = Step(
    "batching", "batch_size=None turns batching off: there is no batch to write into", refused=True
)


def make_plan(
    dataset: Any,
    *,
    batch_size: int | None = 1,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    dtype: torch.dtype | None = None,
    memory_format: torch.memory_format = torch.contiguous_format,
    device: torch.device | None = None,
    split: Split = "always",
) -> Plan:
    """Decides where each step of `dataset` runs. Reads attributes of the dataset, and none of its samples.

    Args:
        dataset: any torch dataset.
        batch_size: None turns automatic batching off, as in torch; with a batch sampler pass any int.
        collate_fn: the user's; None or torch's `default_collate` for the default.
        dtype: dtype that images are cast to after the transform; None for no cast.
        memory_format: `torch.contiguous_format` or `torch.channels_last`.
        device: device that batches are copied to, and where values are then made; None or the CPU for none.
        split: whether native code may do parts: "always", "ops" (only if that is more than decoding, which
            lazy images do as well; docs/deferred-images.md), or "never".

    Raises:
        ConfigError: `dtype` or `memory_format` isn't one that batches of images come in.
    """
    check_output(dtype, memory_format)
    output = _Output(dtype, memory_format, None if device is None or device.type == "cpu" else device)
    default = collate_fn is default_collate and not default_collation_changed()
    collate = None if default else collate_fn
    recognized = recognize_dataset(dataset)
    gather = plan_gather(recognized) if batch_size is not None and collate is None else None
    if gather is not None:
        return _gather_plan(*gather, output)
    problems: tuple[Step, ...] = () if batch_size is not None else (NO_BATCHING,)
    if not isinstance(recognized, Recognized):
        head = Step(recognized.what, recognized.reason, refused=True)
        return Plan((DatasetSegment(steps=(head, *problems)),))
    transform = _as_on_images(recognized)
    lowered = lower_transform(transform, recognized.size, recognized.mode)
    table = None if lowered.table is None else cast_table(lowered.table, dtype)
    if isinstance(table, str):
        problems += (Step(f"cast to {_name(dtype)}", table, refused=True),)
        table = lowered.table
    if collate is not None and lowered.views == 1 and _collates_as_torch(collate, recognized, table):
        collate = None
    problems += _view_problems(lowered, output)
    if lowered.views > 1 and problems:
        lowered = lower_transform(transform, recognized.size, several=False)
        table = lowered.table
    user = _collate_segment(recognized, table, collate)
    if collate is not None or problems or lowered.views > 1:
        output = replace(output, device=None)  # a collate_fn gets what the transform gives, on the host
    if lowered.whole and table is not None and not problems:
        return Plan(tuple(_native_segments(recognized, lowered, table, user, output)))
    only_decodes = not lowered.ops and table is None and not recognized.source.decoded
    as_it_is = recognized.tensors or recognized.read is not None
    if split == "never" or (split == "ops" and only_decodes) or as_it_is:
        source = Step(recognized.what, recognized.note)
        steps = (*lowered.steps, *problems)  # what native code would do with them doesn't matter here
        as_written = (replace(step, parity="", reason=step.reason if step.refused else "") for step in steps)
        return Plan((DatasetSegment(steps=(source, *as_written)),))
    return Plan(tuple(_split_segments(recognized, lowered, table, user, problems, output)))


def _collates_as_torch(
    collate: Callable[[list[Any]], Any], recognized: Recognized, table: PointwiseTable | None
) -> bool:
    """Returns whether `collate` is timm's `fast_collate` and gives what torch's default collation would: it
    does for single uint8 images with integer labels."""
    module = sys.modules.get("timm.data.loader")
    known = module is not None and collate is getattr(module, "fast_collate", None)
    as_uint8 = table is not None and table.dtype == torch.uint8
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
    if not recognized.tensors:
        return recognized.transform
    rest = [] if recognized.transform is None else [recognized.transform]
    return v1.Compose([v1.PILToTensor(), *rest])


def with_batch_transform(
    plan: Plan, batch_transform: Callable[..., Any], device: torch.device | None = None
) -> Plan:
    """`plan` with the user's `batch_transform` at its end, which is called with whole batches."""
    text = located(describe_callable(batch_transform), batch_transform)
    where: Where = "python" if device is None or device.type == "cpu" else "device"
    reason = "called with each batch" + (" after the copy" if where == "device" else "")
    step = Step(f"batch_transform: {text}", reason)
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


def _gather_plan(
    gather: GatherSegment, values: PointwiseTable | None, steps: tuple[Step, ...], output: _Output
) -> Plan:
    if values is None:
        return Plan((gather,))
    table = cast_table(values, output.dtype)
    # Fractions that a cast cuts off aren't the table's business: torch casts the batch.
    table = values if isinstance(table, str) else table
    return Plan(
        (
            gather,
            ValueSegment(
                steps=(*steps, *_cast_steps(values.dtype, table.dtype)),
                table=table,
                memory_format=output.memory_format,
                where=output.where,
            ),
        )
    )


def _native_segments(
    recognized: Recognized,
    lowered: LoweredTransform,
    table: PointwiseTable,
    user: CollateSegment,
    output: _Output,
) -> list[Segment]:
    """Native code writes whole batches; values are made there, or on the device after the copy."""
    assert lowered.table is not None
    if user.collate is not None and collates_first(user.collate):
        last = Step(user.steps[-1].text, "collates its samples first: called with the finished batch")
        user = replace(user, steps=(*user.steps[:-1], last), collates_first=True)
    if user.collate is not None and user.by_pixel and not user.collates_first:
        output = replace(output, memory_format=torch.channels_last)  # as its samples are
    cast = _cast_steps(lowered.table.dtype, table.dtype)
    erasing = _erasing_step(lowered)
    native = _native_segment(recognized, lowered, batched=True)
    shape = f"[N, {', '.join(map(str, native.shape))}] {output.layout}"
    what = "batch" if user.collate is None else "images"
    if output.device is None:
        written = Step(f"{what}: {_name(table.dtype)} {shape}", "written directly into the batch", "exact")
        steps = (*native.steps, *lowered.table_steps, *cast, written)
        native = replace(native, steps=steps, table=table.values, dtype=table.dtype, layout=output.layout)
        after = ValueSegment(
            steps=lowered.erase_steps, table=None, erasing=erasing, memory_format=output.memory_format
        )
        return [native, *_if_any(after), *_if_any(user)]
    written = Step(f"{what}: uint8 {shape}", "written directly into the batch", "exact")
    final = Step(f"images: {_name(table.dtype)} {shape}", "overlapped with the training step", "exact")
    copy = _copy_step(output.device, table.dtype)
    values = ValueSegment(
        steps=(copy, *lowered.table_steps, *cast, *lowered.erase_steps, final),
        table=table,
        erasing=erasing,
        memory_format=output.memory_format,
        where="device",
    )
    native = replace(native, steps=(*native.steps, written), layout=output.layout)
    return [native, *_if_any(user), values]


def _split_segments(
    recognized: Recognized,
    lowered: LoweredTransform,
    table: PointwiseTable | None,
    user: CollateSegment,
    problems: tuple[Step, ...],
    output: _Output,
) -> list[Segment]:
    """Native code begins samples in worker processes, the user's Python continues with them, and a table may
    end whole batches."""
    native = replace(
        _native_segment(recognized, lowered, batched=False),
        varies=not lowered.extent.exact,
        keeps_info=lowered.table is None or not all(map(sees_pixels_only, lowered.middle)),
    )
    middle = TransformSegment(steps=lowered.middle_steps, transforms=lowered.middle)
    refusal = () if lowered.refusal is None else (lowered.refusal,)
    user = replace(user, steps=(*refusal, *user.steps, *problems))
    if table is None or lowered.table is None:
        return [native, *_if_any(middle), *_if_any(user)]
    cast = _cast_steps(lowered.table.dtype, table.dtype)
    copy = () if output.device is None else (_copy_step(output.device, table.dtype),)
    values = ValueSegment(
        steps=(*copy, *lowered.table_steps, *cast, *lowered.erase_steps),
        table=table,
        erasing=_erasing_step(lowered),
        memory_format=output.memory_format,
        where=output.where,
        transforms=lowered.tail,
        uncast=lowered.table,
    )
    end: list[Segment] = [*_if_any(user), values] if copy else [values, *_if_any(user)]
    return [native, *_if_any(middle), *end]


def _native_segment(recognized: Recognized, lowered: LoweredTransform, *, batched: bool) -> NativeSegment:
    """Returns the part of native code that makes the images themselves: uint8 pixels."""
    return NativeSegment(
        steps=(Step(recognized.what, recognized.note), *lowered.op_steps),
        source=recognized.source,
        ops=lowered.ops,
        height=lowered.extent.height,
        width=lowered.extent.width,
        mode=lowered.mode,
        upright=lowered.upright,
        tensors=recognized.tensors,
        read=recognized.read,
        channels=lowered.channels,
        views=lowered.views,
        batched=batched,
    )


def _collate_segment(
    recognized: Recognized, table: PointwiseTable | None, collate: Callable[[list[Any]], Any] | None
) -> CollateSegment:
    steps = []
    if recognized.target_transform is not None:
        target = located(describe_callable(recognized.target_transform), recognized.target_transform)
        steps.append(Step(f"target_transform: {target}", "called with each label"))
    if collate is not None:
        text = located(describe_callable(collate), collate)
        steps.append(Step(f"collate_fn: {text}", "called with the list of (image, target)"))
    return CollateSegment(
        steps=tuple(steps),
        target_transform=recognized.target_transform,
        collate=collate,
        sample_type=torch.Tensor if table is None else table.sample_type,
        by_pixel=table is not None and table.by_pixel,
    )


def _if_any(segment: S) -> tuple[S, ...]:
    """The segment, unless there is nothing to do in it."""
    return (segment,) if segment.steps else ()


def _erasing_step(lowered: LoweredTransform) -> ErasingStep | None:
    if lowered.erase is None or lowered.table is None:
        return None
    return ErasingStep(lowered.erase, len(lowered.ops), lowered.table.dtype)


def _view_problems(lowered: LoweredTransform, output: _Output) -> tuple[Step, ...]:
    if lowered.views == 1 or (output.dtype is None and output.layout == "NCHW"):
        return ()
    reason = "dtype and memory_format are for batches of one image a sample"
    return (Step(f"{lowered.views} images a sample", reason, refused=True),)


def _copy_step(device: torch.device, final: torch.dtype) -> Step:
    saved = f", 1 byte a value rather than {final.itemsize}" if final.itemsize > 1 else ""
    return Step(f"to {device}", f"copied, overlapped with the training step{saved}", "exact")


def _cast_steps(before: torch.dtype, after: torch.dtype) -> tuple[Step, ...]:
    return () if before == after else (Step(f"cast to {_name(after)}", IN_TABLE, "exact"),)


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")
