"""The functions of Pillow and torchvision that Headrace replaces in worker processes, or whose work native
code does: `TABLE`. What builds on functions that a program put in their places runs as written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
from PIL import Image, ImageEnhance, ImageFile, ImageFilter, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import folder
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2  # noqa: N812

from headrace._torch_compat import implementations, kernels_of

# What ends if a function was replaced; plans that read images natively do in any case.
IMAGES = "deferred images"
RECORDING = "recording"  # of torchvision's transforms
FORMAT = "this format"
PLANS = "plans alone"  # workers call the function as written


@dataclass(frozen=True, eq=False)
class Function:
    """A function, by where it is looked up.

    Attributes:
        text: full name.
        owner, key: the module, class or table that holds it, and its name there.
        module: module or package that its code must be in.
        stops: what ends if it was replaced.
        named: whether its code must have the same name.
    """

    text: str
    owner: ModuleType | type | Mapping[Any, Any]
    key: Any
    module: str
    stops: str
    named: bool = True

    def found(self) -> Any:
        """Returns the present function, or None if there is none."""
        holder = self.owner if isinstance(self.owner, Mapping) else vars(self.owner)
        return holder.get(self.key)

    def foreign(self) -> Any:
        """Returns the first function or class in its place that is neither the library's own nor Headrace's,
        which stands for it, or None."""
        for part in _parts(self.found()):
            if part is not None and not self._is_own(part):
                return part
        return None

    def _is_own(self, part: Any) -> bool:
        if not isinstance(part, (type, FunctionType)):
            return False
        # functools.wraps copies __module__ and __qualname__ from the function that is wrapped.
        place = part.__module__ if isinstance(part, type) else part.__globals__.get("__name__")
        if not _is_in(place, self.module):
            return _is_in(place, "headrace")
        if isinstance(part, type) or not self.named:
            return True
        prefix = f"{self.owner.__qualname__}." if isinstance(self.owner, type) else ""
        name = getattr(part.__code__, "co_qualname", prefix + part.__code__.co_name)
        return bool(name == f"{prefix}{self.key}")


Patched = list[tuple[Function, Any]]


def find_patched() -> Patched:
    """Those of `TABLE` in whose places are other functions now, and these. Takes less than a millisecond."""
    foreign = ((function, function.foreign()) for function in TABLE)
    return [(function, other) for function, other in foreign if other is not None]


def stopped_by(patched: Patched) -> set[str]:
    """Returns what ends because functions were replaced. Without such images there is nothing to record."""
    stopped = {function.stops for function, _ in patched}
    return stopped | {RECORDING} if IMAGES in stopped else stopped


def _parts(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, property):
        return [value.fget, value.fset]
    return [value.__func__ if isinstance(value, (staticmethod, classmethod)) else value]


def _is_in(name: str | None, module: str) -> bool:
    return name == module or str(name).startswith(f"{module}.")


# --- the table -------------------------------------------------------------------------------------------

# What deferred images do themselves, and what Pillow does on its way to the same pixels.
METHODS = (
    *("__array__", "__array_interface__", "__eq__", "__exit__", "__getstate__", "__setstate__"),
    *("_copy", "_crop", "_new"),
    *("close", "convert", "copy", "crop", "filter", "frombytes", "im", "load", "point", "reduce", "resize"),
    *("rotate", "split", "thumbnail", "tobytes", "transform", "transpose"),
)
FILE_METHODS = ("load_djpeg", "load_end", "load_prepare", "load_read", "load_seek", "text")
FILES = (ImageFile.ImageFile, JpegImageFile, PngImageFile, WebPImageFile)
PIL_FUNCTIONS = {
    Image: ("blend", "fromarray", "frombuffer", "frombytes", "merge", "new"),
    ImageOps: ("autocontrast", "equalize", "exif_transpose", "invert", "posterize", "solarize"),
}
FILTERS = (
    *(ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast, ImageEnhance.Sharpness),
    ImageFilter.GaussianBlur,
)
FORMATS = ("JPEG", "PNG", "WEBP")

# Functions that torchvision's transforms call, if it has one of that name.
STEPS = (
    *("adjust_brightness", "adjust_contrast", "adjust_hue", "adjust_saturation", "adjust_sharpness"),
    *("affine", "autocontrast", "center_crop", "convert_image_dtype", "crop", "equalize", "erase"),
    *("five_crop", "gaussian_blur", "get_dimensions", "get_size", "hflip", "horizontal_flip", "invert"),
    *("normalize", "pad", "permute_channels", "perspective", "pil_to_tensor", "posterize", "resize"),
    *("resized_crop", "rgb_to_grayscale", "rotate", "solarize", "ten_crop", "to_dtype", "to_grayscale"),
    *("to_image", "to_tensor", "vertical_flip", "vflip"),
)
CALLED = ("ColorJitter", "Compose", "GaussianBlur", "RandomResizedCrop")
KERNEL_INPUTS = (Image.Image, torch.Tensor, tv_tensors.Image)


def _members(owner: Any, keys: tuple[str, ...], stops: str) -> Iterator[Function]:
    whole = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
    module = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
    for key in keys:
        if owner is F2:  # its functions are of modules below, and some have several names
            yield Function(f"{whole}.{key}", owner, key, "torchvision", stops, named=False)
        else:
            yield Function(f"{whole}.{key}", owner, key, module, stops)


def _of_pillow() -> Iterator[Function]:
    yield from _members(Image, ("open",), PLANS)
    for kind in (Image.Image, *FILES):
        yield from _members(kind, (*METHODS, *FILE_METHODS), IMAGES)
    yield from _members(ImageFile.ImageFile, ("__init__",), IMAGES)
    for module, keys in PIL_FUNCTIONS.items():
        yield from _members(module, keys, IMAGES)
    for base in dict.fromkeys(base for kind in FILTERS for base in kind.__mro__[:-1]):
        yield from _members(base, ("__init__", "enhance", "filter"), IMAGES)
    for name in FORMATS:
        yield Function(f"PIL.Image.OPEN[{name!r}]", Image.OPEN, name, "PIL", FORMAT, named=False)


def _of_torchvision() -> Iterator[Function]:
    yield from _members(folder, ("pil_loader",), PLANS)
    yield from (*_members(F, STEPS, RECORDING), *_members(F2, STEPS, RECORDING))
    for functions in map(implementations, ("pil", "tensor")):
        if functions is not None:
            yield from _members(functions, STEPS, RECORDING)
    for name in STEPS:
        for key in KERNEL_INPUTS:
            text = f"{F2.__name__}.{name} for {key.__module__}.{key.__qualname__}"
            owner = kernels_of(getattr(F2, name, None))
            yield Function(text, owner, key, "torchvision", RECORDING, named=False)
    for module in (v1, v2):
        for name in CALLED:
            kind = getattr(module, name)
            yield Function(f"{module.__name__}.{name}", module, name, "torchvision", RECORDING, named=False)
            yield from _members(kind, ("__call__", "forward"), RECORDING)


TABLE: tuple[Function, ...] = (*_of_pillow(), *_of_torchvision())
