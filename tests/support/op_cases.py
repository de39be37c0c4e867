"""Every op with every example of its file, made natively and by torchvision."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torchvision.transforms import autoaugment, v2

from headrace._native import abi, ffi
from headrace._native.decoders import pillow_resizes_vertically_first
from headrace.engine.lower import lower_ops
from headrace.records import Draw, SampleKey
from headrace.transforms import OPS, find_op
from headrace.transforms.op import ImageOp

Case = tuple[type, dict[str, Any]]


def cases(kind: type) -> dict[str, Case]:
    """Every class with each of its examples, for ops of a kind."""
    found: dict[str, Case] = {}
    for op in (op for op in OPS if issubclass(op, kind)):
        for cls in op.matches:
            is_v2 = ".v2." in cls.__module__
            examples = [*op.examples, *(op.v2_examples if is_v2 else ())]
            api = "v2" if is_v2 else cls.__module__.partition(".")[0]
            for number, example in enumerate(examples):
                found[f"{api}.{cls.__name__} {number}"] = (cls, dict(example))
    return found


CASES = cases(ImageOp)


def made(case: Case) -> Any:
    """The transform of a case."""
    cls, arguments = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return cls(**arguments)


def read(transform: Any) -> ImageOp:
    """The op of a transform that is known."""
    cls = find_op(type(transform))
    assert cls is not None
    op = cls.read(transform)
    assert isinstance(op, ImageOp)
    return op


def pipeline_of(steps: Any, height: int = 1, width: int = 1) -> ffi.Pipeline:
    """Makes a pipeline of uint8 images, rows of pixels."""
    return ffi.Pipeline(
        lower_ops(steps),
        height,
        width,
        dtype=0,
        nhwc=True,
        table=None,
        keep=None,
        decoders=0,
        max_pixels=0,
        pillow_vertical_first=pillow_resizes_vertically_first(),
    )


def native(steps: Any, image: Image.Image, key: SampleKey) -> Image.Image | None:
    """`image` after `steps`, or None if they are left to torchvision."""
    drawn = pipeline_of(steps).draw(key, image.width, image.height)
    if drawn is None:
        return None
    out = np.empty((drawn.height, drawn.width, 3), np.uint8)
    pipeline = pipeline_of(steps, drawn.height, drawn.width)
    done = pipeline.apply(np.asarray(image), drawn.values, out.ctypes.data)
    return Image.fromarray(out) if done else None


def native_drawn(op: ImageOp, image: Image.Image, draw: Draw) -> npt.NDArray[np.uint8] | None:
    """`image` after `op` with the numbers of `draw`, in its size, or None if it is left to torchvision."""
    out = np.empty((image.height, image.width, 3), np.uint8)
    values = np.zeros((1, abi.DRAWS))
    values[0, : len(draw)] = draw
    pipeline = pipeline_of([op], image.height, image.width)
    return out if pipeline.apply(np.asarray(image), values, out.ctypes.data) else None


def operations_of_torchvision(transform: Any, image: Image.Image, count: int) -> Counter[tuple[str, bool]]:
    """Counts what a torchvision policy applies in `count` calls, and whether with a negative
    magnitude."""
    seen: Counter[tuple[str, bool]] = Counter()

    def apply(*arguments: Any, **options: Any) -> Any:
        image, name, magnitude = arguments[-3:]
        seen[name, magnitude < 0] += 1
        return image

    is_v2 = isinstance(transform, v2.Transform)
    owner: Any = type(transform) if is_v2 else autoaugment
    torch.manual_seed(0)
    with mock.patch.object(owner, "_apply_image_or_video_transform" if is_v2 else "_apply_op", apply):
        for _ in range(count):
            transform(image)
    return seen


def same(left: Image.Image, right: Image.Image) -> bool:
    """Returns whether two images have the same mode and pixels."""
    return left.mode == right.mode and np.array_equal(np.asarray(left), np.asarray(right))


def joined(result: Any) -> Any:
    """Several images one below the other, as native code gives them."""
    if not isinstance(result, tuple):
        return result
    strip = Image.new("RGB", (result[0].width, sum(image.height for image in result)))
    for i, image in enumerate(result):
        strip.paste(image, (0, i * image.height))
    return strip
