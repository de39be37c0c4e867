"""Makes torchvision's transforms record what they would do to a deferred image.

In worker processes these are replaced when they start. Nothing is replaced if the program has put a function
of its own in place of any that this stands for (`headrace.transforms.patches`):

- `PIL.Image.open` gives deferred images (`headrace.deferred.images`).
- torchvision's implementations for PIL images, which `torchvision.transforms.functional` calls for an image,
  get a recording form, and so do the kernels of `torchvision.transforms.v2` for that class. The public
  functions stay what they are.
- `GaussianBlur` of v1, which has no such implementation, records when it is called. `RandomResizedCrop` and
  `ColorJitter` of v1 draw the same numbers when they are called, but make fewer tensors of them.
- The `Compose` of v1 and v2 has native code make the tensor (`headrace.deferred.conversion`).
- torchvision's kernels for tensors, methods of `torch.Tensor` and functions for image files record as well
  (`tensors`), as do `torch.stack` and what else makes batches (`batches`), and image processors
  (`processors`).

Where a transform comes from makes no difference: an attribute of the dataset or of one inside of it, a class
of the user's, a closure, or a function that a Hugging Face dataset calls.

Transforms run as they are written. They draw their random numbers as before, from the generators that torch,
NumPy and Python have in that worker; only then do they call one of these functions with a deferred image,
which notes the call, with the numbers that were drawn. So every number is the one that would have been drawn
without recording, and user code in between sees no difference. Calls with arguments of an unusual kind are
not recorded: the original is called, and the image is decoded for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace import _torch_compat
from headrace._native import ffi
from headrace.deferred import batches, conversion, images, processors, tensors
from headrace.deferred.steps import MAX_FACTOR, MAX_PADDING, adjustment
from headrace.errors import NativeError
from headrace.records import Draw
from headrace.transforms.chance import RandomAutocontrast, RandomEqualize, RandomSharpness
from headrace.transforms.changed import find_change
from headrace.transforms.colors import ChannelPermutation, Grayscale
from headrace.transforms.crops import Pad
from headrace.transforms.gaussian_blur import GaussianBlur, torch_convolves_as_expected
from headrace.transforms.op import ImageOp, NoNativeForm
from headrace.transforms.patches import RECORDING, Patched, find_patched, stopped_by

Function = Callable[..., Any]
Found = tuple[ImageOp, Draw] | None


# --- the op that a call of a function on an image comes to, or None if the call isn't recorded -------------


def _adjust_brightness(img: Image.Image, brightness_factor: Any) -> Found:  # noqa: ARG001
    return adjustment(0, brightness_factor)


def _adjust_contrast(img: Image.Image, contrast_factor: Any) -> Found:  # noqa: ARG001
    return adjustment(1, contrast_factor)


def _adjust_saturation(img: Image.Image, saturation_factor: Any) -> Found:  # noqa: ARG001
    return adjustment(2, saturation_factor)


def _adjust_hue(img: Image.Image, hue_factor: Any) -> Found:
    if img.mode == "L":
        return None  # it is given back itself
    return adjustment(3, hue_factor)


def _adjust_sharpness(img: Image.Image, sharpness_factor: Any) -> Found:  # noqa: ARG001
    if type(sharpness_factor) not in (int, float) or not 0 <= sharpness_factor <= MAX_FACTOR:
        return None
    return RandomSharpness(1.0, float(sharpness_factor)), (1.0,)


def _autocontrast(img: Image.Image) -> Found:  # noqa: ARG001
    return RandomAutocontrast(1.0), (1.0,)


def _equalize(img: Image.Image) -> Found:  # noqa: ARG001
    return RandomEqualize(1.0), (1.0,)


def _to_grayscale(img: Image.Image, num_output_channels: int = 1) -> Found:  # noqa: ARG001
    return (Grayscale(num_output_channels), ()) if num_output_channels in (1, 3) else None


def _permute_channels(inpt: Image.Image, permutation: Any) -> Found:  # noqa: ARG001
    channels = permutation.tolist() if isinstance(permutation, torch.Tensor) else permutation
    if not isinstance(channels, list) or sorted(channels) != [0, 1, 2]:
        return None
    return ChannelPermutation(), tuple(map(float, channels))


def _pad(img: Image.Image, padding: Any, fill: Any = 0, padding_mode: str = "constant") -> Found:  # noqa: ARG001
    sides = list(padding) if isinstance(padding, (list, tuple)) else [padding]
    if len(sides) not in (1, 2, 4) or not all(type(s) is int and 0 <= s <= MAX_PADDING for s in sides):
        return None
    levels = fill if isinstance(fill, (list, tuple)) else [0 if fill is None else fill]
    if not all(type(level) in (int, float) and 0 <= level <= 255 for level in levels):
        return None
    color = tuple(int(level) for level in levels) * (3 if len(levels) == 1 else 1)
    if len(color) != 3:
        return None
    left, top, right, bottom = sides * (4 // len(sides))
    return Pad((left, top, right, bottom), padding_mode, color), ()  # type: ignore[arg-type]


def _gaussian_blur(img: Image.Image, kernel_size: Any, sigma: Any = None, *, is_v2: bool = False) -> Found:
    sizes = kernel_size if isinstance(kernel_size, (list, tuple)) else [kernel_size] * 2
    sigmas = sigma if isinstance(sigma, (list, tuple)) else [sigma]
    if len(sizes) != 2 or not all(type(each) is int for each in sizes):
        return None
    if len(set(sigmas)) != 1 or len(sigmas) > 2 or type(sigmas[0]) not in (int, float):
        return None
    size_x, size_y = sizes
    if size_x // 2 >= img.width or size_y // 2 >= img.height:
        return None
    deviation = float(np.float32(sigmas[0]))
    if not torch_convolves_as_expected(GaussianBlur(size_x, size_y, (0.1, 2.0), is_v2)):
        return None
    return GaussianBlur(size_x, size_y, (deviation, deviation), is_v2), (deviation, 0.0)


STEPS: dict[str, Callable[..., Found]] = {
    "adjust_brightness": _adjust_brightness,
    "adjust_contrast": _adjust_contrast,
    "adjust_saturation": _adjust_saturation,
    "adjust_hue": _adjust_hue,
    "adjust_sharpness": _adjust_sharpness,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "pad": _pad,
    "to_grayscale": _to_grayscale,
}
KERNELS: dict[str, Callable[..., Found]] = {
    **STEPS,
    "gaussian_blur": functools.partial(_gaussian_blur, is_v2=True),
    "permute_channels": _permute_channels,
    "rgb_to_grayscale": _to_grayscale,
}


def _recorded(image: Any, found: Callable[..., Found], *args: Any, **kwargs: Any) -> Image.Image | None:
    """The deferred image after a step, or None if it isn't recorded."""
    if not images.may_record(image) or image.mode not in ("RGB", "L"):
        return None
    try:
        step = found(image, *args, **kwargs)
    except (TypeError, ValueError, NoNativeForm):
        return None  # the original says what is wrong with its arguments
    # The file is read only now, where the original reads it, and may raise an error.
    return None if step is None else images.after(image, *step)


def _recording_step(original: Function, found: Callable[..., Found]) -> Function:
    """Makes a function that records what `original` makes of an image."""

    @functools.wraps(original)
    def recorded(img: Any, *args: Any, **kwargs: Any) -> Any:
        image = _recorded(img, found, *args, **kwargs)
        return original(img, *args, **kwargs) if image is None else image

    return recorded


# --- transforms of v1 that are called in another way ------------------------------------------------------

FILTERS: dict[Any, int] = {
    mode: Image.Resampling[mode.name] for mode in v1.InterpolationMode if hasattr(Image.Resampling, mode.name)
}
_GAUSSIAN_BLUR, _RESIZED_CROP = v1.functional.gaussian_blur, v1.functional.resized_crop
_ADJUSTMENTS = ("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_hue")
NEVER_FITS = (4.0, 4.0)  # a scale with which RandomResizedCrop finds no crop, and takes a central one


def _calling(kind: type, transform: Callable[[Any, Image.Image], Any]) -> Function:
    """`__call__` of `kind`, by `transform` for a deferred image if the object does what its class does."""
    above: Any = kind  # a subclass may have another class's __call__ between

    @functools.wraps(nn.Module.__call__)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        single = type(self) is kind and len(args) == 1 and not kwargs and images.may_record(args[0])
        if not single or find_change(self) is not None:
            return super(above, self).__call__(*args, **kwargs)
        return transform(self, args[0])

    return call


def _blur(self: Any, image: Image.Image) -> Any:
    """Runs `GaussianBlur` as written, but records the work on pixels."""
    blur: Any = v1.functional.gaussian_blur
    if blur is not _GAUSSIAN_BLUR:
        return self.forward(image)
    sigma = self.get_params(self.sigma[0], self.sigma[1])
    blurred = _recorded(image, _gaussian_blur, self.kernel_size, [sigma, sigma])
    return blur(image, self.kernel_size, [sigma, sigma]) if blurred is None else blurred


def _crop(self: Any, image: Image.Image) -> Any:
    """Runs `RandomResizedCrop` as written, but for how numbers are drawn: the same ones, by the same
    functions of torch in the same order, without a dozen tensors around them."""
    number = torch.empty(1)
    usual = type(number) is torch.Tensor and number.dtype is torch.float32 and number.device.type == "cpu"
    if not usual or not _is_pair(self.scale) or not _is_pair(self.ratio):
        return self.forward(image)
    box = _drawn_box(image, number, self.scale, self.ratio)
    if box is None:
        with torch.random.fork_rng([]):  # the numbers that get_params draws were drawn above
            box = self.get_params(image, NEVER_FITS, self.ratio)
    cropped = None
    if v1.functional.resized_crop is _RESIZED_CROP and self.antialias is not False:  # which is warned about
        top, left, height, width = box
        edges = left, top, left + width, top + height
        cropped = images.crop_and_resize(image, edges, self.size, FILTERS.get(self.interpolation))
    if cropped is not None:
        return cropped
    return v1.functional.resized_crop(image, *box, self.size, self.interpolation, antialias=self.antialias)


def _is_pair(bounds: Any) -> bool:
    usual = type(bounds) in (list, tuple) and len(bounds) == 2
    return usual and all(type(bound) in (int, float) for bound in bounds)


def _drawn_box(
    image: Image.Image, number: torch.Tensor, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int] | None:
    """A (top, left, height, width), or None if none of ten fits. `number` is where numbers are drawn."""
    width, height = image.size
    narrowest, widest = _logarithms(*ratio)
    for _ in range(10):
        area = width * height * number.uniform_(*scale).item()
        aspect = number.uniform_(narrowest, widest).exp_().item()
        columns, rows = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < columns <= width and 0 < rows <= height:
            top = int(number.random_(0, height - rows + 1).item())
            return top, int(number.random_(0, width - columns + 1).item()), rows, columns
    return None


@functools.lru_cache(maxsize=64)
def _logarithms(*ratios: float) -> list[float]:
    return torch.log(torch.tensor(ratios)).tolist()


def _jitter_colors(self: Any, image: Image.Image) -> Any:
    """Runs `ColorJitter` as written, but for numbers in place of tensors, of which it compares up to ten."""
    order, *factors = self.get_params(self.brightness, self.contrast, self.saturation, self.hue)
    for which in order.tolist():
        if factors[which] is not None:
            image = getattr(v1.functional, _ADJUSTMENTS[which])(image, factors[which])
    return image


_CALLS = {v1.GaussianBlur: _blur, v1.RandomResizedCrop: _crop, v1.ColorJitter: _jitter_colors}


# --- start and stop ------------------------------------------------------------------------------------

IMAGE_OPS = ("decode_image", "decode_jpeg")
# Each puts something back, or is None if there was nothing to replace.
_undo: list[Callable[[], Any] | None] = []
_undo_decoding: list[Callable[[], Any] | None] = []


def prepare() -> None:
    """Loads and looks up what takes a while, for processes that are forked from this one."""
    with suppress(NativeError):  # they report it
        ffi.library()
    for name in IMAGE_OPS:
        _torch_compat.find_image_op(name)


def start(patched: Patched | None = None) -> None:
    """From now on torchvision's transforms record in this process what is done to deferred images, unless a
    function was replaced that they call, or would; `patched` are those functions if they are known."""
    if _undo or RECORDING in stopped_by(find_patched() if patched is None else patched):
        return
    for name, found in STEPS.items():
        build = functools.partial(_recording_step, found=found)
        _undo.append(_torch_compat.replace_implementation("pil", name, build))
    for name, found in KERNELS.items():
        build = functools.partial(_recording_step, found=found)
        _undo.append(_torch_compat.replace_kernel(getattr(v2.functional, name), Image.Image, build))
    _undo.extend(tensors.replacing())
    for name in IMAGE_OPS:
        _undo_decoding.append(_torch_compat.replace_image_op(name, tensors.decode))
    by_torchcodec = functools.partial(tensors.decode, always_upright=True)
    _undo_decoding.append(_torch_compat.replace_torchcodecs_jpeg_op(by_torchcodec))
    for kind, call in _CALLS.items():
        _replace_method(kind, "__call__", _calling(kind, call))
    _undo.extend(batches.replacing())
    _replace_method(v1.Compose, "__call__", conversion.composed(v1.Compose.__call__))
    _replace_method(v2.Compose, "forward", conversion.composed(v2.Compose.forward))
    for kind, name, method in processors.methods():
        _replace_method(kind, name, method)


def stop_decoding() -> None:
    """From now on torchvision and torchcodec decode files themselves."""
    while _undo_decoding:
        undo = _undo_decoding.pop()
        if undo is not None:
            undo()


def stop() -> None:
    """Ends what `start` began."""
    stop_decoding()
    while _undo:
        undo = _undo.pop()
        if undo is not None:
            undo()


def _replace_method(owner: Any, name: str, method: Function) -> None:
    _undo.append(_torch_compat.replace_attribute(owner, name, method))
