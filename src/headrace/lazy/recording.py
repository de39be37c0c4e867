"""How torchvision's transforms come to record what they would do.

In worker processes three things are done when they start, and nothing else is looked for or replaced:

- `PIL.Image.open` gives lazy images (`headrace.lazy.image`).
- `torchvision.transforms.functional` gets a recording form of some functions. All of torchvision's
  transforms look these functions up there when they are called, and so does code that calls
  `F.adjust_hue(…)`. It makes no difference whether a transform is an attribute of the dataset or of one
  inside of it, in a class of the user's, in a closure, in a `Compose`, or in a function that a Hugging Face
  dataset calls. A function that user code has imported by its own name is the original, for which the image
  is decoded.
- The functions of `torchvision.transforms.v2`, which choose a kernel by the class of an image, get recording
  kernels in the same way.

Transforms run as they are written. They draw their random numbers as before, from the generators that torch,
NumPy and Python have in that worker; only then do they call one of these functions with a lazy image, which
notes the call, with the numbers that were drawn. So every number is the one that would have been drawn
without recording, and user code in between sees no difference. Calls with arguments of an unusual kind are
not recorded: the original is called, and the image is decoded for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import tv_tensors
from torchvision.transforms import functional as v1
from torchvision.transforms.v2 import functional as v2_functional

from headrace import _torch_compat
from headrace.lazy.image import Recorded
from headrace.lazy.pending import (
    DTYPES,
    LEVELS,
    Erased,
    PendingImage,
    PendingTensor,
    Pixels,
    Recording,
    Table,
    is_pending,
    made,
    pending,
)
from headrace.records import Draw
from headrace.transforms.channels import ChannelPermutation
from headrace.transforms.color_jitter import ColorJitter
from headrace.transforms.gaussian_blur import GaussianBlur, torch_convolves_as_expected
from headrace.transforms.gray import Grayscale
from headrace.transforms.look_ups import RandomAutocontrast, RandomEqualize
from headrace.transforms.op import ImageOp, NoNativeForm
from headrace.transforms.pad import Pad
from headrace.transforms.sharpness import RandomSharpness

Function = Callable[..., Any]
Found = tuple[ImageOp, Draw] | None
Order = Callable[..., tuple[bool, tuple[Any, ...]]]

MAX_FACTOR = 1e4
MAX_PADDING = 1 << 14
MAX_TABLES = 64

_FACTORS = (0.0, MAX_FACTOR)
_BRIGHTNESS = ColorJitter(_FACTORS, None, None, None)
_CONTRAST = ColorJitter(None, _FACTORS, None, None)
_SATURATION = ColorJitter(None, None, _FACTORS, None)
_HUE = ColorJitter(None, None, None, (-0.5, 0.5))
_ORDER = (0.0, 1.0, 2.0, 3.0)


# --- what a call of a function on an image comes to; None: it is not recorded --------------------


def _jitter(which: int, op: ImageOp, factor: Any, lowest: float, highest: float) -> Found:
    if type(factor) not in (int, float) or not lowest <= factor <= highest:
        return None
    factors = [0.0] * 4
    factors[which] = float(factor)
    return op, (*_ORDER, *factors)


def _adjust_brightness(img: Image.Image, brightness_factor: Any) -> Found:  # noqa: ARG001
    return _jitter(0, _BRIGHTNESS, brightness_factor, *_FACTORS)


def _adjust_contrast(img: Image.Image, contrast_factor: Any) -> Found:  # noqa: ARG001
    return _jitter(1, _CONTRAST, contrast_factor, *_FACTORS)


def _adjust_saturation(img: Image.Image, saturation_factor: Any) -> Found:  # noqa: ARG001
    return _jitter(2, _SATURATION, saturation_factor, *_FACTORS)


def _adjust_hue(img: Image.Image, hue_factor: Any) -> Found:  # noqa: ARG001
    return _jitter(3, _HUE, hue_factor, -0.5, 0.5)


def _adjust_sharpness(img: Image.Image, sharpness_factor: Any) -> Found:  # noqa: ARG001
    if type(sharpness_factor) not in (int, float) or not 0 <= sharpness_factor <= MAX_FACTOR:
        return None
    return RandomSharpness(1.0, float(sharpness_factor)), (1.0,)


def _autocontrast(img: Image.Image) -> Found:  # noqa: ARG001
    return RandomAutocontrast(1.0), (1.0,)


def _equalize(img: Image.Image) -> Found:  # noqa: ARG001
    return RandomEqualize(1.0), (1.0,)


def _rgb_to_grayscale(img: Image.Image, num_output_channels: int = 1) -> Found:  # noqa: ARG001
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


def _blurred(img: Image.Image, kernel_size: Any, sigma: Any, *, is_v2: bool) -> Found:
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


def _gaussian_blur(img: Image.Image, kernel_size: Any, sigma: Any = None) -> Found:
    return _blurred(img, kernel_size, sigma, is_v2=False)


def _gaussian_blur_v2(img: Image.Image, kernel_size: Any, sigma: Any = None) -> Found:
    return _blurred(img, kernel_size, sigma, is_v2=True)


STEPS: dict[str, Callable[..., Found]] = {
    "adjust_brightness": _adjust_brightness,
    "adjust_contrast": _adjust_contrast,
    "adjust_saturation": _adjust_saturation,
    "adjust_hue": _adjust_hue,
    "adjust_sharpness": _adjust_sharpness,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "gaussian_blur": _gaussian_blur,
    "pad": _pad,
    "rgb_to_grayscale": _rgb_to_grayscale,
    "to_grayscale": _rgb_to_grayscale,
}
STEPS_V2: dict[str, Callable[..., Found]] = {
    **STEPS,
    "gaussian_blur": _gaussian_blur_v2,
    "permute_channels": _permute_channels,
}


def _recording_step(original: Function, found: Callable[..., Found]) -> Function:
    """`original` changes an image to another."""

    @functools.wraps(original)
    def recorded(img: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(img, Recorded) and img.chain is not None:
            try:
                step = found(img, *args, **kwargs)
            except (TypeError, ValueError, NoNativeForm):
                step = None  # the original says what is wrong with its arguments
            image = None if step is None else img.after(*step)
            if image is not None:
                return image
        return original(img, *args, **kwargs)

    return recorded


# --- tensors -----------------------------------------------------------------------------------------


def _source_of(image: Any) -> Any:
    """Where the pixels of an RGB image come from; None: it is of another kind."""
    if isinstance(image, Recorded):
        chain = image.chain
        if chain is not None and chain.shown_mode == "RGB":
            return chain
    if type(image) is Image.Image and image.mode == "RGB" and image.width and image.height:
        return Pixels(np.array(image))
    return None


def _recording_conversion(original: Function, table: Callable[[], Table | None], **how: Any) -> Function:
    """`original` gives a tensor of an image; `how` is for `_tensor`."""

    @functools.wraps(original)
    def recorded(pic: Any, *args: Any, **kwargs: Any) -> Any:
        levels = table() if not args and not kwargs else None
        source = None if levels is None else _source_of(pic)
        if source is None or levels is None:
            return original(pic, *args, **kwargs)
        return _tensor(source, levels, **how)

    return recorded


def _tensor(
    source: Any, table: Table, *, kind: type[PendingTensor] = PendingTensor, rows_of_pixels: bool = False
) -> torch.Tensor:
    return pending(Recording(source, table, rows_of_pixels=rows_of_pixels), kind)


def _unit_levels() -> Table | None:
    """0 to 1, as `to_tensor` gives them."""
    return table_of(_as_float, LEVELS, (torch.get_default_dtype(),))


def _as_float(image: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return image.to(dtype=dtype).div(255)


def _levels() -> Table:
    return LEVELS


_tables: dict[Any, Any] = {}
_UNKNOWN = object()


def table_of(function: Function, table: Table, args: tuple[Any, ...]) -> Table | None:
    """The table of what `function`, which treats every value by itself, makes of an image of `table`.

    None: it gives no table, or raises, or its arguments are of an unusual kind.
    """
    if not all(map(_is_fixed, args)):
        return None
    key = (function, table, tuple(tuple(each) if isinstance(each, list) else each for each in args))
    found: Table | None = _tables.get(key, _UNKNOWN)
    if found is not _UNKNOWN:
        return found
    try:
        values = function(table.as_image(), *args)
        fits = type(values) is torch.Tensor and tuple(values.shape) == (3, 1, 256) and values.dtype in DTYPES
        found = Table(values.reshape(3, 256).contiguous()) if fits else None
    except Exception:  # raised again by the original, called with the user's tensor
        found = None
    if len(_tables) >= MAX_TABLES:
        _tables.clear()
    _tables[key] = found
    return found


def _is_fixed(argument: Any) -> bool:
    """Whether an argument is a number for all channels or one for each, or a setting: not what has another
    value later (a tensor, an array), nor what treats columns or rows differently."""
    if isinstance(argument, (list, tuple)):
        return len(argument) in (1, 3) and all(type(each) in (int, float) for each in argument)
    return type(argument) in (bool, torch.dtype)


def _recording_values(original: Function, order: Order, of_values: Function | None = None) -> Function:
    """`original` changes every value of a tensor by itself, as `of_values` does; `order` gives whether that
    is in place, and the arguments. Without `of_values` it is `original`; with it, `original` gives a tensor
    that shares the memory of its argument where others give the argument itself."""

    @functools.wraps(original)
    def recorded(image: Any, *args: Any, **kwargs: Any) -> Any:
        changed = None
        if is_pending(image) and not image.recording.erased:
            try:
                in_place, ordered = order(*args, **kwargs)
            except TypeError:  # the original says what is wrong with its arguments
                return original(image, *args, **kwargs)
            same = image if of_values is None else pending(image.recording, type(image))
            if ordered[0] is image.dtype:
                return same
            table = table_of(of_values or original, image.recording.table, ordered)
            changed = _changed(image, table, same if in_place else None)
        return original(image, *args, **kwargs) if changed is None else changed

    return recorded


def _changed(image: Any, table: Table | None, same: Any) -> Any:
    """With another table; `same` is what comes of that in place, None: it is not in place."""
    if table is None:
        return None
    if same is not None:
        fits = table.dtype == image.recording.table.dtype
        return same if fits and image.recording.change(table) else None
    recording = image.recording.copy(table)
    return None if recording is None else pending(recording, type(image))


def _normalize_order(mean: Any, std: Any, inplace: bool = False) -> tuple[bool, tuple[Any, ...]]:
    return inplace, (mean, std)


def _convert_order(dtype: torch.dtype = torch.float) -> tuple[bool, tuple[Any, ...]]:
    return False, (dtype,)


def _to_dtype_order(dtype: torch.dtype = torch.float, scale: bool = False) -> tuple[bool, tuple[Any, ...]]:
    return False, (dtype, scale)


def _recording_erase(original: Function) -> Function:
    @functools.wraps(original)
    def recorded(img: Any, i: int, j: int, h: int, w: int, v: torch.Tensor, inplace: bool = False) -> Any:
        if is_pending(img) and _erases(img, i, j, h, w, v):
            box = Erased(i, j, h, w, v.clone())
            if inplace and img.recording.change(erased=(box,)):
                return img
            recording = None if inplace else img.recording.copy(erased=(box,))
            if recording is not None:
                return pending(recording, type(img))
        return original(img, i, j, h, w, v, inplace)

    return recorded


def _erases(image: torch.Tensor, top: Any, left: Any, height: Any, width: Any, value: Any) -> bool:
    _, rows, columns = image.shape
    whole = all(type(edge) is int for edge in (top, left, height, width))
    if not whole or not (0 <= top <= top + height <= rows and 0 <= left <= left + width <= columns):
        return False
    if type(value) is not torch.Tensor or value.requires_grad or value.device.type != "cpu":
        return False
    return tuple(value.shape) in ((1, 1, 1), (3, 1, 1), (3, height, width))


# --- start and stop ------------------------------------------------------------------------------------

_undo: list[Callable[[], Any]] = []


def start() -> None:
    """From now on torchvision's functions record in this process what they are called with."""
    if _undo:
        return
    for name, found in STEPS.items():
        _replace(v1, name, _recording_step(getattr(v1, name), found))
    _replace(v1, "to_tensor", _recording_conversion(v1.to_tensor, _unit_levels))
    _replace(v1, "pil_to_tensor", _recording_conversion(v1.pil_to_tensor, _levels, rows_of_pixels=True))
    _replace(v1, "normalize", _recording_values(v1.normalize, _normalize_order))
    _replace(v1, "convert_image_dtype", _recording_values(v1.convert_image_dtype, _convert_order))
    _replace(v1, "erase", _recording_erase(v1.erase))
    to_image = _recording_conversion(v2_functional.to_image, _levels, kind=PendingImage, rows_of_pixels=True)
    _replace(v2_functional, "to_image", to_image)
    _replace(v2_functional, "pil_to_tensor", v1.pil_to_tensor)
    _replace_kernels()


def stop() -> None:
    """Ends what `start` began."""
    while _undo:
        _undo.pop()()


def _replace(module: Any, name: str, function: Function) -> None:
    _undo.append(functools.partial(setattr, module, name, getattr(module, name)))
    setattr(module, name, function)


def _replace_kernels() -> None:
    """For v2."""
    for name, found in STEPS_V2.items():
        _replace_kernel(name, Image.Image, functools.partial(_recording_step, found=found))
    # Sizes are asked of an image's shape.
    for name in (name for name in dir(v2_functional) if not name.startswith("get_")):
        _replace_kernel(name, tv_tensors.Image, _on_made)
    for name, order in (("normalize", _normalize_order), ("to_dtype", _to_dtype_order)):
        _replace_value_kernels(name, order)
    _replace_kernel("erase", torch.Tensor, _recording_erase)
    _replace_kernel("erase", tv_tensors.Image, _recording_erase)


def _replace_kernel(name: str, cls: type, build: Callable[[Function], Function]) -> None:
    undo = _torch_compat.replace_kernel(getattr(v2_functional, name), cls, build)
    if undo is not None:
        _undo.append(undo)


def _replace_value_kernels(name: str, order: Order) -> None:
    """Of a function that treats every value of a tensor by itself."""

    def for_tensors(kernel: Function) -> Function:
        def for_images(on_made: Function) -> Function:
            return _recording_values(on_made, order, kernel)

        _replace_kernel(name, tv_tensors.Image, for_images)
        return _recording_values(kernel, order)

    _replace_kernel(name, torch.Tensor, for_tensors)


def _on_made(kernel: Function) -> Function:
    """`kernel` of torchvision's class of images, for pending ones as well."""

    @functools.wraps(kernel)
    def on_made(image: Any, *args: Any, **kwargs: Any) -> Any:
        return kernel(made(image), *args, **kwargs)

    return on_made
