"""Samples that native code starts in the worker and the user's Python continues with."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import default_collate

from headrace._native import abi
from headrace._native.decoders import decoder_bits
from headrace._torch_compat import pin_memory
from headrace.device.postprocess import Postprocess
from headrace.engine.error_policy import ErrorPolicyDataset, Request
from headrace.engine.lower import draws_of, lower_pipeline, lower_table, make_image
from headrace.engine.native import WAIT_SLICE_MS, NativeThreads
from headrace.engine.prefetch import HeldSamples, samples_of
from headrace.engine.seeding import seed_generators
from headrace.engine.slots import batch_memory
from headrace.plan import Plan, make_plan
from headrace.plan.pointwise import PointwiseTable, run_suffix, with_strides_by_pixel
from headrace.plan.segments import Layout, NativeSegment, TransformSegment, ValueSegment
from headrace.records import BatchKeys, SampleKey
from headrace.transforms.op import keep_info


@dataclass
class SplitPipelineFactory:
    """Makes `SplitPipelineDataset`, where the workers are.

    Attributes:
        plan: plan of the dataset; None in a spawned worker, which plans for itself: entry points and a pack's
            index may take gigabytes.
        options: arguments of `make_plan`.
    """

    plan: Plan | None
    options: Mapping[str, Any]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "plan": None}

    def __call__(self, dataset: Any, collate: Callable[[Any], Any], on_error: str) -> SplitPipelineDataset:
        """The guard of `dataset`."""
        plan = self.plan or make_plan(dataset, **self.options)
        if plan.head is None:
            raise RuntimeError(f"{type(dataset).__name__} is another dataset once it was pickled")
        return SplitPipelineDataset(dataset, collate, on_error, plan)


class SplitPipelineDataset(ErrorPolicyDataset):
    """A dataset of image files, each sample made of `plan` rather than asked of the dataset.

    Where the batch is torch's default one and all of its images are of one mode and size, the pointwise end
    of the transform is left to whoever takes the batch: it has `Uint8Images` in place of the images, a
    quarter of the bytes that floats would take on their way from a worker process. `ApplyTable` does the
    rest.

    Args:
        dataset, collate, on_error: as for `ErrorPolicyDataset`.
        plan: what to make of each sample.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[Any], Any],
        on_error: str,
        plan: Plan,
    ) -> None:
        super().__init__(dataset, collate, on_error)
        head, middle = plan.head, plan.find(TransformSegment)
        assert head is not None
        self.plan = plan
        self._head = head
        self._transforms = () if middle is None else middle.transforms
        self._values = plan.values
        self._user = plan.collate
        self._native: NativeHead | None = None  # made by the process that makes samples

    def _make(self, request: Request, *, batched: bool) -> Any:
        if self._native is None:
            self._native = NativeHead(self._head)
        seeds = request.seeds()
        indices = self._noted(request.batch.listed())
        samples = zip(indices, seeds, request.batch.occurrences.tolist(), strict=True)
        with request.own_generators():
            with self._native.holding(request.batch.indices):
                made = [self._sample(request.seeding.key, *sample) for sample in samples]
            collate = self._batch if batched else self._single
            return self.collated(made, seeds[0] if seeds else None, batched=batched, collate=collate)

    def _sample(self, key: tuple[int, int], index: Any, seed: int | None, occurrence: int) -> Any:
        return self._attempt(index, self._begun, key, seed, occurrence)

    def _begun(self, index: Any, key: tuple[int, int], seed: int | None, occurrence: int) -> Any:
        """(image, target), but for a table at the end: an image of its channels waits for it."""
        values, position = self._values, self._position(index)
        assert self._native is not None
        sample = SampleKey(*key, position, occurrence)
        image: Any = self._native.make(sample)
        if seed is not None:
            seed_generators(seed)
        image = run_suffix(image, self._transforms)
        if values is not None:
            waits = values.table is not None and fits(image, values.table)
            image = PartialSample(image, sample) if waits else run_suffix(image, values.transforms)
        target: Any = self._head.source.label(position)
        if self._user.target_transform is not None:
            target = self._user.target_transform(target)
        return image, target

    def _batch(self, samples: Any) -> Any:
        images = [image for image, _ in samples]
        if self._user.collate is None and alike(images):
            targets = default_collate([(target,) for _, target in samples])  # strings come as a tuple
            return [levels_of(images), *targets]
        return self.collate([(self._finished(image), target) for image, target in samples])

    def _single(self, sample: Any) -> Any:
        image, target = sample
        return self.collate((self._finished(image), target))

    def _finished(self, image: Any) -> Any:
        if not isinstance(image, PartialSample):
            return image
        values = self._values
        assert values is not None
        assert values.uncast is not None
        levels = levels_of([image])
        by_pixel = values.uncast.by_pixel
        finished = look_up(levels.images, values.uncast, "NHWC" if by_pixel else "NCHW", empty)
        if values.erasing is not None:
            layout = torch.channels_last if by_pixel else torch.contiguous_format
            erasing = ValueSegment(table=None, erasing=values.erasing, memory_format=layout)
            finished = Postprocess(erasing).images(finished, levels.keys)
        if by_pixel:
            finished = with_strides_by_pixel(finished)
        return finished[0].as_subclass(values.uncast.sample_type)

    def _path(self, index: Any) -> str | None:
        try:
            return self._head.source.path(self._position(index))
        except (IndexError, TypeError):
            return None

    def _position(self, index: Any) -> int:
        size = len(self._head.source)
        number = operator.index(index)
        if not -size <= number < size:
            raise IndexError(f"index {number} is out of range for {size} samples")
        return number % size


class NativeHead:
    """Makes images with the native operations of `head`, in the thread that asks, for one process."""

    def __init__(self, head: NativeSegment) -> None:
        self._head = head
        self._decoders = decoder_bits()
        self._pipeline = lower_pipeline(head, self._decoders)
        self._source = head.source.native()
        self._held: HeldSamples | None = None
        self._threads = NativeThreads(0)

    @contextmanager
    def holding(self, indices: Any) -> Iterator[None]:
        """Within this, the samples `indices` needn't be waited for one by one, wherever they come from."""
        source = self._head.source
        order = samples_of(indices, len(source)) if source.leased else None
        if order is None:
            yield  # local files; or indices that the maker of the sample complains of
            return
        before = self._held
        with HeldSamples(self._head, source, order) as self._held:
            try:
                yield
            finally:
                self._held = before

    def make(self, key: SampleKey) -> Image.Image:
        """Makes torchvision's image for `key`: RGB, or L if the plan has one channel. Raises SampleError."""
        if self._source is None and (self._held is None or key.sample not in self._held):
            with self.holding([key.sample]):
                return self._make(key)
        return self._make(key)

    def _make(self, key: SampleKey) -> Image.Image:
        prefix = self._head
        if prefix.source.decoded and not prefix.ops and prefix.mode == "RGB":
            return prefix.source.image(key.sample)  # there is nothing to decode
        pixels, status = self._run(key, prefix.height, prefix.width)
        height, width = int(status["height"]), int(status["width"])
        if prefix.varies and status["code"] != abi.OK and height > 0:
            # Refused for its size, which is known now.
            drawn = self._pipeline.draw(key, width, height)
            if drawn is not None:
                pixels, status = self._run(key, drawn.height, drawn.width)
        if status["code"] != abi.OK:
            return make_image(prefix, self._pipeline, key)
        image = Image.fromarray(pixels if prefix.channels == 3 else pixels[:, :, 0])
        source = prefix.source
        if source.decoded:
            return image  # which has no info
        if prefix.keeps_info and self._has_info(key, height, width):
            with source.open(key.sample) as file:
                opened = Image.open(file)
                # What a JPEG's header says stays; other formats have more to say behind their pixels.
                image.info = dict((opened if opened.format == "JPEG" else opened.convert(prefix.mode)).info)
            if prefix.upright:
                image.info = _upright_info(image.info)
        return image

    def _has_info(self, key: SampleKey, height: int, width: int) -> bool:
        ops = self._head.ops
        draws = draws_of(self._pipeline, ops, key, width, height)
        return draws is not None and keep_info(ops, draws, height, width)

    def _run(self, key: SampleKey, height: int, width: int) -> tuple[np.ndarray[Any, Any], np.void]:
        prefix, pipeline = self._head, self._pipeline
        if (height, width) != (prefix.height, prefix.width):
            pipeline = lower_pipeline(replace(prefix, height=height, width=width), self._decoders)
        pixels = np.empty((height, width, prefix.channels), np.uint8)
        native = self._source
        if native is None:
            assert self._held is not None
            native = self._held.native(key.sample)
        sample, output = (np.array([key.sample]), np.array([key.occurrence])), pixels.ctypes.data
        batch = self._threads.pool().submit(
            pipeline, native, *sample, seed=key.seed, epoch=key.epoch, output=output
        )
        while not batch.wait(WAIT_SLICE_MS):
            pass
        return pixels, batch.statuses[0]


def _upright_info(info: dict[Any, Any]) -> dict[Any, Any]:
    """Returns what `PIL.ImageOps.exif_transpose` leaves of an image's info."""
    image = Image.new("L", (1, 1))
    image.info = info
    return ImageOps.exif_transpose(image).info


@dataclass(frozen=True, eq=False)
class PartialSample:
    """An RGB or L image whose values are still to be made of its levels.

    Attributes:
        image: the image after all steps before the table.
        key: key of the sample, which erasing depends on.
    """

    image: Image.Image
    key: SampleKey


@dataclass(frozen=True, eq=False)
class Uint8Images:
    """In place of a batch's images: what its table is to be looked up with, uint8 [n, channels, height,
    width], and the samples' keys."""

    images: torch.Tensor
    keys: BatchKeys

    def pin_memory(self) -> Uint8Images:
        """Returns the same in page-locked memory, as torch's loader asks for it."""
        return replace(self, images=pin_memory(self.images))


class ApplyTable:
    """Gives a batch that has `Uint8Images` its images; others stay what they are.

    Args:
        values: how values are made of levels.
        take: gives memory of a number of bytes, as uint8; see `headrace.engine.slots`.
    """

    def __init__(self, values: ValueSegment, take: Callable[[int], torch.Tensor]) -> None:
        self._values = values
        self._take = take
        self._layout: Layout = "NHWC" if values.memory_format is torch.channels_last else "NCHW"
        self._rest = Postprocess(values if values.where == "device" else replace(values, table=None))

    def __call__(self, batch: Any, keys: BatchKeys | None) -> Any:  # noqa: ARG002
        """The batch, whose tensors are where it is finished: on the device, or on the host."""
        if type(batch) is not list or not batch or not isinstance(batch[0], Uint8Images):
            return batch
        images, values = batch[0].images, self._values
        if values.where == "native":
            assert values.table is not None
            images = look_up(images, values.table, self._layout, self._take)
        return [self._rest.images(images, batch[0].keys), *batch[1:]]


def empty(nbytes: int) -> torch.Tensor:
    """New memory."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu")


def look_up(
    levels: torch.Tensor, table: PointwiseTable, layout: Layout, take: Callable[[int], torch.Tensor]
) -> torch.Tensor:
    """The values of `levels`, uint8 [n, channels, height, width] on the host, in memory of `take`."""
    n, channels, height, width = levels.shape
    nbytes = levels.numel() * table.dtype.itemsize
    flat = take(nbytes).view(table.dtype)
    lower_table(table, height, width, layout).look_up(levels.data_ptr(), n, flat.data_ptr())
    if layout == "NHWC":
        return flat.view(n, height, width, channels).permute(0, 3, 1, 2)
    return flat.view(levels.shape)


def fits(image: Any, table: PointwiseTable) -> bool:
    """Returns whether `image` is one that `table` is made for."""
    mode = "RGB" if table.channels == 3 else "L"
    return type(image) is Image.Image and image.mode == mode and image.width > 0 and image.height > 0


def alike(images: Sequence[Any]) -> bool:
    """Returns whether `images` are all `PartialSample`, and of one size; at least one."""
    return bool(images) and all(
        isinstance(each, PartialSample) and each.image.size == images[0].image.size for each in images
    )


def levels_of(samples: Sequence[PartialSample]) -> Uint8Images:
    """The pixels of images of one size; in a worker process, in the memory that they are sent in."""
    width, height = samples[0].image.size
    bands = samples[0].image.getbands()
    shape = (len(samples), len(bands), height, width)
    levels = batch_memory(math.prod(shape)).view(shape)
    planes = levels.numpy()
    for i, sample in enumerate(samples):
        for c, band in enumerate(bands):
            plane = np.frombuffer(sample.image.tobytes("raw", band), np.uint8)
            planes[i, c] = plane.reshape(height, width)
    keys = [sample.key for sample in samples]
    numbers, occurrences = np.array([key.sample for key in keys]), np.array([key.occurrence for key in keys])
    return Uint8Images(levels, BatchKeys(keys[0].seed, keys[0].epoch, numbers, occurrences))
