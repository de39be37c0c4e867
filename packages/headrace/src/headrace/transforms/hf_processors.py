"""Hugging Face image processors: ops for ``processor(image, return_tensors="pt")["pixel_values"][0]``.

Those of transformers 5 with the torchvision backend make a uint8 tensor of an image, resize it with torch,
crop its center, and rescale and normalize the levels. transformers itself is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from PIL import Image
from PIL.Image import Resampling
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from headrace.records import Draw
from headrace.transforms.changed import find_change, is_librarys
from headrace.transforms.crops import CenterCrop
from headrace.transforms.levels import Shown
from headrace.transforms.op import NO_GRAY, ImageOp, NoNativeForm, Op
from headrace.transforms.own_code import adds_to, pixel_values_of
from headrace.transforms.reading import MODES, integer, pair
from headrace.transforms.resize import Resize

BACKEND = ("transformers.image_processing_backends", "TorchvisionBackend")
MODELS = "transformers.models"
CONVNEXT = f"{MODELS}.convnext.image_processing_convnext.ConvNextImageProcessor"
BEIT = f"{MODELS}.beit.image_processing_beit.BeitImageProcessor"
# What makes the values. The classes above have some of these of their own, which `_geometry` knows.
METHODS = (
    *("__call__", "preprocess", "_preprocess", "_preprocess_image_like_inputs", "_prepare_images_structure"),
    *("_prepare_image_like_inputs", "fetch_images", "process_image", "convert_to_rgb", "pad", "resize"),
    *("center_crop", "rescale_and_normalize", "rescale", "normalize", "_standardize_kwargs"),
    "_validate_preprocess_kwargs",
)
UNUSUAL = (
    *("do_pad", "do_reduce_labels", "device", "data_format", "input_data_format", "return_tensors"),
    "disable_grouping",
)
OTHER_VALUES = "gives other values than its settings say"
# Heights and widths on which the processor is compared with its steps.
COMPARED = ((61, 40), (250, 333), (3, 1))
# Rows by which an image is larger than what is cropped of it.
MARGINS = (-3, -2, 0, 1, 2, 3, 5)
# Below, ConvNeXT's crops the center of a larger image.
CONVNEXT_WARPS_FROM = 384

Steps = list[tuple[Callable[[Any], Any], Op | None]]


@dataclass(frozen=True, eq=False)
class ProcessorCrop:
    """The processor's own center crop of a tensor to height × width."""

    processor: Any
    height: int
    width: int

    def __call__(self, image: torch.Tensor) -> Any:
        return self.processor.center_crop(image, self)  # the attributes are those of a size


def _values(processor: Any, image: torch.Tensor) -> Any:
    """Returns the processor's values for a uint8 tensor [channels, height, width] of its size already."""
    whole = {"do_resize": False, "do_center_crop": False, "input_data_format": "channels_first"}
    return processor(image, return_tensors="pt", **whole)["pixel_values"][0]


@dataclass(frozen=True)
class Values(Shown):
    """Rescaled and normalized levels."""

    arguments = ("image_mean", "image_std")


@dataclass(frozen=True)
class OverWhite(ImageOp):
    """An RGB image over a white background where it has a transparent color, which Pillow keeps even after
    ``convert("RGB")``. Native code leaves files that may name one to Pillow."""

    native = "group"  # of nothing
    gray_problem = NO_GRAY

    def __str__(self) -> str:
        return "do_convert_rgb"

    def replay(self, image: Image.Image, draw: Draw) -> Any:
        return over_white(image)


def over_white(image: Image.Image) -> Image.Image:
    """`image` in RGB, over a white background where it is transparent."""
    if "A" not in image.getbands() and image.info.get("transparency") is None:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


# Of processors: code, settings and result of the last comparison, which takes as long as a dozen images.
_compared: WeakKeyDictionary[Any, tuple[tuple[CodeType, str], bool]] = WeakKeyDictionary()


def find_processor(transform: Any) -> tuple[Any, bool, CodeType] | None:
    """The processor whose pixel values `transform` returns, whether it converts the image to RGB before, and
    the code that calls it, or None if it does anything else."""
    if _backend() is None:
        return None
    is_lambda = type(transform) is v1.Lambda and find_change(transform) is None
    return pixel_values_of(transform.lambd if is_lambda else transform, _is_processor)


def processing_steps(transform: Any, processor: Any, converts: bool, code: CodeType) -> Steps:
    """Transforms that do to an RGB image, one after another, what `transform` does, in which `find_processor`
    found the rest; those that aren't torchvision's each with its op.

    Raises:
        NoNativeForm: the processor isn't of a known kind, or has unusual settings.
    """
    _require_known(processor)
    values = (partial(_values, processor), Values.read(processor))
    white: Steps = [(over_white, OverWhite())] if processor.do_convert_rgb else []
    steps: Steps = [*white, (v2.PILToTensor(), None), *_geometry(processor), values]
    if converts:
        steps.insert(0, (v2.RGB(), None))
    state = (code, repr(vars(processor)))
    before = _compared.get(processor)
    if before is None or before[0] != state:
        before = _compared[processor] = state, _are_equal(transform, [step for step, _ in steps])
    if not before[1]:
        raise NoNativeForm(OTHER_VALUES)
    return steps


def _backend() -> Any:
    return getattr(sys.modules.get(BACKEND[0]), BACKEND[1], None)


def _is_processor(value: Any) -> bool:
    return _backend() in type(value).__mro__


def _require_known(processor: Any) -> None:
    kind, backend = _library_class(processor), _backend()
    changed = adds_to(type(processor), kind, settings=True)
    methods = {name: getattr(kind, name, None) for name in METHODS}
    own = [name for name, method in methods.items() if method is not getattr(backend, name, None)]
    if changed or (own and _name(kind) not in (CONVNEXT, BEIT)):
        raise NoNativeForm(f"{type(processor).__name__} has its own {', '.join(changed or own)}")
    attributes = vars(processor)
    replaced = [name for name, method in methods.items() if name in attributes or not is_librarys(method)]
    if replaced:
        raise NoNativeForm(f"{', '.join(replaced)} of the processor was replaced")
    for name in UNUSUAL:
        setting = getattr(processor, name, None)
        if setting is not None and setting is not False:
            raise NoNativeForm(f"{name}={setting!r} has no native form")


def _library_class(processor: Any) -> type:
    """The nearest class of transformers' own."""
    return next(each for each in type(processor).__mro__ if each.__module__.startswith("transformers."))


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _geometry(processor: Any) -> Steps:
    """Resize and crops of a uint8 tensor."""
    steps: Steps = []
    if processor.do_resize:
        mode = _mode_of(processor.resample)
        size = _size_of(processor.size)
        edge = size[0]
        if _name(_library_class(processor)) != CONVNEXT:
            steps.append(_resize(size, mode))
        elif len(size) != 1:
            raise NoNativeForm(f"size={dict(processor.size)}: ConvNeXT's is a shortest_edge")
        elif edge < CONVNEXT_WARPS_FROM:
            steps += [_resize([int(edge / processor.crop_pct)], mode), _crop(processor, [edge, edge])]
        else:
            steps.append(_resize([edge, edge], mode))
    if processor.do_center_crop:
        steps.append(_crop(processor, _size_of(processor.crop_size)))
    return steps


def _resize(size: list[int], mode: InterpolationMode) -> tuple[Callable[[Any], Any], Op]:
    step = v2.Resize(size, interpolation=mode, antialias=True)
    return step, Resize.read_on_tensor(step)


def _crop(processor: Any, size: list[int]) -> tuple[Callable[[Any], Any], Op]:
    height, width = pair(size)
    op = CenterCrop(height, width, rounds_down=True)
    step = ProcessorCrop(processor, height, width)
    for margin in MARGINS:
        image = _noise(max(1, height + margin), width + margin + 1)
        expected = v2.functional.pil_to_tensor(op.replay(image, ()))
        if not torch.equal(step(v2.functional.pil_to_tensor(image)), expected):
            raise NoNativeForm(OTHER_VALUES)
    return step, op


def _mode_of(resample: Any) -> InterpolationMode:
    if resample is None:
        return InterpolationMode.BILINEAR
    if isinstance(resample, InterpolationMode):
        return resample
    if resample not in list(Resampling):
        raise NoNativeForm(f"resample={resample!r} isn't one of Pillow's filters")
    chosen = Resampling(resample)
    return InterpolationMode.NEAREST_EXACT if chosen is Resampling.NEAREST else MODES[chosen]


def _size_of(size: Any) -> list[int]:
    """[height, width], or [shorter edge]."""
    sizes = dict(size) if isinstance(size, Iterable) else {}
    names = ["shortest_edge"] if set(sizes) == {"shortest_edge"} else ["height", "width"]
    if set(sizes) != set(names):
        raise NoNativeForm(f"size={sizes or size}: only height and width, or shortest_edge, run natively")
    return [integer("size", sizes[name]) for name in names]


def _are_equal(transform: Any, steps: Sequence[Callable[[Any], Any]]) -> bool:
    """Returns whether `transform` gives the same values as `steps`."""
    for height, width in COMPARED:
        image = _noise(height, width)
        image.info["transparency"] = image.getpixel((0, 0))
        expected, found = transform(image), image
        for step in steps:
            found = step(found)
        if type(expected) is not torch.Tensor or not _same(expected, found):
            return False
    return True


def _noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def _same(expected: torch.Tensor, found: Any) -> bool:
    alike = expected.shape == found.shape and expected.dtype == found.dtype
    bits = (each.contiguous().view(torch.uint8) for each in (expected, found))
    return bool(alike) and expected.device == found.device and torch.equal(*bits)
