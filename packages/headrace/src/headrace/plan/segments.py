"""The plan: one list of segments, which executors run and `explain()` prints.

A segment is a part of the work that one executor does in one place: native code, the user's Python, or the
device. It holds what the executor needs, and the same in words as its steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar

import torch
from PIL import Image

from headrace.plan.pointwise import OUTPUT_DTYPES, PointwiseTable
from headrace.records import Mode
from headrace.sources.source import Source
from headrace.transforms.op import ImageOp
from headrace.transforms.random_erasing import RandomErasing

Where = Literal["native", "python", "device"]
Layout = Literal["NCHW", "NHWC"]


@dataclass(frozen=True)
class Step:
    """One step in words: a line of `explain()`.

    Attributes:
        text: name and parameters, such as ``Resize(256×256, bilinear)``.
        reason: reason why it runs where it does; empty if nothing needs saying.
        parity: how its values compare with those of the step in Python, which may be torchvision's, torch's
            or transformers', such as ``exact (Pillow 13.0)``; empty for a step that runs as Python.
        refused: whether it keeps the pipeline from running natively as a whole.
    """

    text: str
    reason: str = ""
    parity: str = ""
    refused: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class NativeSegment:
    """Native code reads, decodes and transforms images.

    Attributes:
        source: images and labels.
        mode: "RGB" or "L": files are read as Pillow's ``convert(mode)`` gives them.
        decode: function of a file's bytes by which the dataset reads uint8 tensors, or None if Pillow reads
            its images.
        read: function of a sample's index that gives its (image, label) if native code can't read its file;
            by default, Pillow reads the file.
        upright: whether images are turned as EXIF says, before all `ops`, by `PIL.ImageOps.exif_transpose` or
            by `decode`.
        ops: operations on 8-bit RGB, in order; gray is carried as three equal channels.
        channels: channels of every output image: 3 (RGB), or 1 (L).
        height, width: size of every output image in pixels; of several images, one below the other.
        views: number of images that each sample consists of.
        table: value of each level of each channel, [channels, 256] of `dtype`, or None for the level (uint8).
        dtype: dtype that native code writes: uint8, float16, bfloat16 or float32.
        layout: "NCHW" (contiguous) or "NHWC" (`torch.channels_last`).
    """

    steps: tuple[Step, ...] = ()
    source: Source
    ops: tuple[ImageOp, ...]
    height: int
    width: int
    mode: Mode = "RGB"
    upright: bool = False
    decode: Callable[[torch.Tensor], torch.Tensor] | None = None
    read: Callable[[int], tuple[Image.Image, int]] | None = None
    channels: int = 3
    views: int = 1
    table: torch.Tensor | None = field(default=None, repr=False)
    dtype: torch.dtype = torch.uint8
    layout: Layout = "NHWC"
    where: Where = field(default="native", init=False)

    def __post_init__(self) -> None:
        if self.dtype not in OUTPUT_DTYPES:
            raise ValueError(f"dtype {self.dtype} isn't one that native code writes")
        if self.table is None and self.dtype != torch.uint8:
            raise ValueError(f"{self.dtype} needs a table of levels")
        shape = (self.channels, 256)
        if self.table is not None and (self.table.shape != shape or self.table.dtype != self.dtype):
            given = f"{list(self.table.shape)} {self.table.dtype}"
            raise ValueError(f"table must be {list(shape)} of {self.dtype}, not {given}")

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample: [channels, height, width], or [views, channels, …] if it has several."""
        image = (self.channels, self.height // self.views, self.width)
        return image if self.views == 1 else (self.views, *image)

    @property
    def sample_nbytes(self) -> int:
        """Memory of one sample as native code writes it, in bytes."""
        return self.channels * self.height * self.width * self.dtype.itemsize


@dataclass(frozen=True, eq=False, kw_only=True)
class GatherSegment:
    """Batches are rows gathered from `tensors` [n, …] in memory: all, or `rows` of them, int64 [m]."""

    steps: tuple[Step, ...] = ()
    tensors: tuple[torch.Tensor, ...]
    rows: torch.Tensor | None = None
    where: Where = field(default="native", init=False)

    @property
    def nbytes(self) -> int:
        """Memory of all rows, in bytes."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


@dataclass(frozen=True, eq=False, kw_only=True)
class DatasetSegment:
    """The dataset's own `__getitem__` makes the samples, as it is written."""

    steps: tuple[Step, ...]
    where: Where = field(default="python", init=False)


@dataclass(frozen=True)
class ErasingStep:
    """RandomErasing in its place.

    Attributes:
        number: number of the step in the pipeline, which its random numbers depend on.
        dtype: dtype of the user's transform; `erase.value` becomes this first, and then the batch's dtype.
    """

    erase: RandomErasing
    number: int
    dtype: torch.dtype


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueSegment:
    """The step from 8-bit levels to values, for whole batches of images, on the host or on the device.

    Attributes:
        table: value of each level, the loader's cast included, or None if images have their values already.
        erasing: rectangles that are overwritten after that, if any.
        where: "native" before the copy to a device, "device" after it.
    """

    steps: tuple[Step, ...] = ()
    table: PointwiseTable | None
    erasing: ErasingStep | None = None
    memory_format: torch.memory_format = torch.contiguous_format
    where: Where = "native"


@dataclass(frozen=True, eq=False, kw_only=True)
class CollateSegment:
    """The user's functions of labels and lists of samples, if native code makes the images.

    Attributes:
        target_transform: function of the label (an int) of each sample, or None to keep the label.
        collate: function of the list of (image, target), or None for torch's default collation.
        collates_first: whether `collate` calls torch's default collation first, and needs nothing else.
        sample_type: class of one sample's image before collation: `torch.Tensor` or `tv_tensors.Image`.
        by_pixel: whether such an image has the channels of a pixel side by side in memory.
    """

    steps: tuple[Step, ...] = ()
    target_transform: Callable[[int], Any] | None = None
    collate: Callable[[list[Any]], Any] | None = None
    collates_first: bool = False
    sample_type: type[torch.Tensor] = torch.Tensor
    by_pixel: bool = False
    where: Where = field(default="python", init=False)


@dataclass(frozen=True, eq=False, kw_only=True)
class BatchSegment:
    """The user's function of whole batches, called at the very end."""

    steps: tuple[Step, ...]
    where: Where


SampleSegment = NativeSegment | GatherSegment | DatasetSegment
Segment = SampleSegment | ValueSegment | CollateSegment | BatchSegment
S = TypeVar("S", bound=Segment)


@dataclass(frozen=True)
class Plan:
    """Segments in the order in which they run, at most one of each class. The first one makes the samples."""

    segments: tuple[Segment, ...]

    def __post_init__(self) -> None:
        if not self.segments or not isinstance(self.segments[0], SampleSegment):
            raise ValueError("a plan must begin with a segment that makes samples")

    @property
    def samples(self) -> SampleSegment:
        """The first segment, which makes the samples."""
        first = self.segments[0]
        assert isinstance(first, SampleSegment)
        return first

    def find(self, kind: type[S]) -> S | None:
        """The segment of that class, if the plan has one."""
        for segment in self.segments:
            if isinstance(segment, kind):
                return segment
        return None

    def steps(self) -> list[tuple[Where, Step]]:
        """All steps in order, each with the place where it runs."""
        return [(segment.where, step) for segment in self.segments for step in segment.steps]

    @cached_property
    def native(self) -> NativeSegment | None:
        """The segment that writes whole batches natively, if there is one."""
        return self.find(NativeSegment)

    @cached_property
    def gather(self) -> GatherSegment | None:
        """The gather from memory, if batches are made by one."""
        return self.find(GatherSegment)

    @cached_property
    def values(self) -> ValueSegment | None:
        """The segment that computes the values of whole batches, or None."""
        return self.find(ValueSegment)

    @property
    def collate(self) -> CollateSegment:
        """The user's functions of labels and samples; an empty segment if there are none."""
        return self.find(CollateSegment) or CollateSegment()

    @cached_property
    def runs_python(self) -> bool:
        """True if samples are made by the dataset's own code, in workers."""
        return isinstance(self.samples, DatasetSegment)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Reasons why native code can't do all of it, at least one if the plan `runs_python`."""
        return tuple(f"{step.text}: {step.reason}" for _, step in self.steps() if step.refused)
