"""Steps that torchvision's functions record on tensors that nobody has touched, by torch's arithmetic.

Crops need nothing here: they are views, which are recognized by their address.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL.JpegImagePlugin import JpegImageFile
from torchvision import tv_tensors
from torchvision.io import ImageReadMode
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)

from headrace import _torch_compat
from headrace._native import ffi
from headrace.decoding import decodes_as_pillow
from headrace.deferred import images
from headrace.deferred.arrays import TENSOR_DTYPES, Recipe, claim, find, is_near, recipe_of
from headrace.deferred.chain import Chain, Counter, File
from headrace.deferred.exif import START_OF_SCAN, UPRIGHT, orientation_by_first, segments_of
from headrace.deferred.steps import (
    MAX_PADDING,
    MAX_TABLES,
    RGB_ROWS,
    PillowPoint,
    Store,
    adjustment,
    laid_out,
)
from headrace.plan.pointwise import LEVELS, look_up_levels
from headrace.transforms.colors import EACH_ADJUSTMENT, FACTORS
from headrace.transforms.crops import Pad
from headrace.transforms.on_tensors import torch_computes_as_expected, torch_resizes_as_expected
from headrace.transforms.op import MAX_SIZE, NoNativeForm
from headrace.transforms.reading import TENSOR_FILTERS
from headrace.transforms.resize import Resize, ResizeShorter

Function = Callable[..., Any]
Step = Callable[..., Recipe | None]

decoded = Counter()  # tensors of files
used = Counter()  # tensors that steps were recorded on which save work
_ADJUSTMENT = replace(EACH_ADJUSTMENT, arithmetic="torch")


def recording(original: Function, step: Step, *, keeps_class: bool = True) -> Function:
    """A kernel of torchvision's that does what `original` does, later if the tensor is deferred.

    Args:
        step: gives the recipe of the result; see `recorded`.
        keeps_class: whether the result of a `tv_tensors.Image` is one, too; else those aren't recorded.
    """

    @functools.wraps(original)
    def kernel(inpt: Any, *args: Any, **kwargs: Any) -> Any:
        if _torch_compat.is_followed() or not (keeps_class or type(inpt) is torch.Tensor):
            return original(inpt, *args, **kwargs)
        return recorded(original, step, inpt, *args, **kwargs)

    return kernel


def recorded(original: Function, step: Step, inpt: Any, *args: Any, **kwargs: Any) -> Any:
    """The result of `original` for a tensor and further arguments, deferred if the tensor is.

    Args:
        step: called with `original`, the tensor's recipe, whether its values lie side by side in memory, and
            the further arguments; gives the recipe of the result, or None if the original is to be called.
        inpt: a tensor [3, height, width], or a batch of one; of a mask [1, height, width].
    """
    masks = type(inpt) is tv_tensors.Mask
    plain = inpt.as_subclass(torch.Tensor) if masks or type(inpt) is tv_tensors.Image else inpt
    batched = type(plain) is torch.Tensor and plain.ndim == 4 and len(plain) == 1
    image = plain[0] if batched else plain
    recipe = recipe_of(image)
    if batched and plain.stride() != image.unsqueeze(0).stride():
        recipe = None
    if recipe is None or recipe.axes != "CHW" or recipe.store.channels != (1 if masks else 3):
        return original(inpt, *args, **kwargs)
    dense = image.is_contiguous() or image.permute(1, 2, 0).is_contiguous()
    try:
        after = step(original, recipe, dense, *args, **kwargs)
    except (TypeError, ValueError, RuntimeError, NoNativeForm):
        after = None  # the original says what is wrong with its arguments
    tensor = None if after is None else after.tensor()
    if tensor is None:
        return original(inpt, *args, **kwargs)
    used.count += 1
    if batched:
        tensor = tensor.unsqueeze(0)
    return tensor if plain is inpt else tv_tensors.wrap(tensor, like=inpt)


def _resize(
    original: Function,  # noqa: ARG001  (all steps are called alike)
    recipe: Recipe,
    dense: bool,
    size: Any,
    interpolation: Any = InterpolationMode.BILINEAR,
    max_size: int | None = None,
    antialias: Any = True,
) -> Recipe | None:
    mode = InterpolationMode(interpolation) if isinstance(interpolation, str) else interpolation
    exact = mode is InterpolationMode.NEAREST or antialias is True
    number = TENSOR_FILTERS.get(mode) if isinstance(mode, InterpolationMode) else None
    if number is None or not exact or not _has_levels(recipe) or not torch_resizes_as_expected(number):
        return None
    width, height = recipe.chain.shown
    sizes = [size] if isinstance(size, int) else size
    if not isinstance(sizes, Sequence) or not all(
        type(each) is int and 0 < each < MAX_SIZE for each in sizes
    ):
        return None
    if max_size is not None and type(max_size) is not int:
        return None
    if len(sizes) == 1 and (max_size is None or sizes[0] < max_size):
        after = ResizeShorter(sizes[0], max_size, number).output_size(height, width)
    elif len(sizes) == 2 and max_size is None:
        after = sizes[0], sizes[1]
    else:
        return None
    if after == (height, width) or min(after) < 2:
        return None  # in the first case the tensor itself is the result
    if not dense:  # torch puts the result in planes
        recipe = _in_planes(recipe)
    return _with(recipe, recipe.chain.after(Resize(*after, number, arithmetic="torch"), ()))


def _resized_crop(
    original: Function,
    recipe: Recipe,
    dense: bool,
    top: int,
    left: int,
    height: int,
    width: int,
    *args: Any,
    **kwargs: Any,
) -> Recipe | None:
    columns, rows = recipe.chain.shown
    top, left, height, width = map(operator.index, (top, left, height, width))
    if not (0 <= top < top + height <= rows and 0 <= left < left + width <= columns):
        return None
    dense &= width == columns and (recipe.store.rows_of_pixels or height == rows)
    dense |= height == 1  # pixels of a row lie side by side
    cropped = _with(recipe, recipe.chain.cropped(left, top, left + width, top + height))
    return None if cropped is None else _resize(original, cropped, dense, *args, **kwargs)


def _resize_mask(
    original: Function,
    recipe: Recipe,
    dense: bool,
    size: Any,
    interpolation: Any = None,
    max_size: int | None = None,
    **kwargs: Any,  # noqa: ARG001  (which torchvision takes, too)
) -> Recipe | None:
    if interpolation == InterpolationMode.NEAREST_EXACT or isinstance(interpolation, int):
        return None
    return _resize(original, _in_planes(recipe), dense, size, InterpolationMode.NEAREST, max_size)


def _pad_mask(
    original: Function,  # noqa: ARG001
    recipe: Recipe,
    dense: bool,  # noqa: ARG001
    padding: Any,
    fill: Any = None,
    padding_mode: str = "constant",
) -> Recipe | None:
    sides = list(padding) if isinstance(padding, (list, tuple)) else []
    usual = len(sides) == 4 and all(type(side) is int and 0 <= side <= MAX_PADDING for side in sides)
    level = 0 if fill is None else fill
    if (
        not usual
        or not any(sides)
        or type(level) is not int
        or not 0 <= level <= 255
        or padding_mode != "constant"
    ):
        return None
    if not _has_levels(recipe):
        return None
    left, top, right, bottom = sides
    return _with(
        _in_planes(recipe), recipe.chain.after(Pad((left, top, right, bottom), "constant", (level,) * 3), ())
    )


def _flip(original: Function, recipe: Recipe, dense: bool, *, axis: str) -> Recipe | None:  # noqa: ARG001
    return _with(recipe, recipe.chain.flipped(**{axis: True}))


def _pad(
    original: Function,  # noqa: ARG001
    recipe: Recipe,
    dense: bool,
    padding: Any,
    fill: Any = None,
    padding_mode: str = "constant",
) -> Recipe | None:
    """Zeros to the right and below values in planes, as image processors make batches of one size."""
    sides = list(padding) if isinstance(padding, (list, tuple)) else []
    usual = len(sides) == 4 and sides[:2] == [0, 0] and all(type(side) is int and side >= 0 for side in sides)
    zeros = fill is None or (type(fill) in (int, float) and fill == 0 and math.copysign(1.0, fill) > 0)
    if not usual or not any(sides) or not zeros or padding_mode != "constant" or _has_levels(recipe):
        return None
    if not dense or recipe.store.rows_of_pixels:
        return None
    width, height = recipe.chain.shown
    return recipe._replace(frame=(height + sides[3], width + sides[2]))


_stores: dict[Any, tuple[Store, Store | None]] = {}


def change_levels(
    original: Function,
    recipe: Recipe,
    dense: bool,  # noqa: ARG001
    *args: Any,
    **kwargs: Any,
) -> Recipe | None:
    """A step that treats every value of a channel alike."""
    key = original, id(recipe.store), torch.get_default_dtype(), *_frozen(args, kwargs)
    found = _stores.get(key)
    if found is None:
        if len(_stores) >= MAX_TABLES:
            _stores.clear()
        changed = _changed(recipe.store, lambda values: original(values, *args, **kwargs))
        found = _stores[key] = recipe.store, changed  # of a store that is kept, no other gets the identity
    store = found[1]
    return None if store is None else recipe._replace(store=store)


def _changed(store: Store, change: Function) -> Store | None:
    """The store of the values that `change` makes of those of `store`, or None if it does more than to
    replace each value by another: it is compared on an image, too."""
    with torch.inference_mode(False):
        levels = torch.arange(LEVELS, dtype=torch.uint8, device="cpu").expand(3, LEVELS)
        values = levels.contiguous() if store.values is None else torch.as_tensor(store.keep).clone()
        changed = change(values.view(3, 1, LEVELS))
        if changed is NotImplemented:  # the operator says what is wrong with its operands
            return None
        if changed.dtype not in TENSOR_DTYPES or changed.shape != (3, 1, LEVELS):
            return None
        if changed.data_ptr() == values.data_ptr():
            return None  # the tensor itself is the result
        changed = changed.reshape(3, LEVELS).contiguous()
        noise = np.random.default_rng(0).integers(0, LEVELS, (3, 19, 23), dtype=np.uint8)
        pixels = torch.from_numpy(noise)
        result = change(look_up_levels(pixels, values))
        if result.dtype != changed.dtype or not torch.equal(result, look_up_levels(pixels, changed)):
            return None
    dtype = TENSOR_DTYPES.index(changed.dtype)
    return replace(store, values=changed.data_ptr(), dtype=dtype, keep=changed)


def _frozen(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments of a function that treats levels alike, in a form that is equal if they are.

    Raises:
        TypeError: one is neither a number, a name or a dtype, nor a list of numbers, one for each channel or
            for all of them.
    """
    return tuple((name, *_frozen_one(value)) for name, value in (*enumerate(args), *kwargs.items()))


def _frozen_one(value: Any) -> tuple[Any, ...]:
    if type(value) is float:
        return float, value, math.copysign(1.0, value)  # 0.0 == -0.0
    if value is None or type(value) in (bool, int, str, torch.dtype):
        return type(value), value
    if type(value) in (list, tuple) and len(value) in (1, 3) and all(type(n) in (int, float) for n in value):
        return type(value), *value
    raise TypeError(f"{type(value).__name__} isn't compared")


def _leveled(original: Function, recipe: Recipe, dense: bool, *args: Any, **kwargs: Any) -> Recipe | None:
    """A step that replaces each level of uint8 by another."""
    changed = change_levels(original, recipe, dense, *args, **kwargs) if _has_levels(recipe) else None
    if changed is None or changed.store.dtype != 0:
        return None
    levels = PillowPoint(bytes(changed.store.keep.flatten().tolist()))
    after = _with(recipe, recipe.chain.after(levels, ()))
    return after and _laid_out(original, after, dense, *args, **kwargs)


def _adjusted(
    original: Function, recipe: Recipe, dense: bool, *args: Any, which: int, **kwargs: Any
) -> Recipe | None:
    """A change of brightness, saturation or hue, by their number in `FACTORS`."""
    (factor,) = (*args, *kwargs.values())
    # By an integer torch multiplies levels as integers.
    found = adjustment(which, factor) if type(factor) is float and _has_levels(recipe) else None
    if found is None or not torch_computes_as_expected(_ADJUSTMENT):
        return None
    op = replace(found[0], arithmetic="torch")
    after = _with(recipe, recipe.chain.after(op, found[1]))
    return after and _laid_out(original, after, dense, 0.5)


def _laid_out(original: Function, after: Recipe, dense: bool, *args: Any, **kwargs: Any) -> Recipe | None:
    """The recipe with its values in memory as `original` leaves them there, or None if that is unusual."""
    rows = _lays_out_rows(original, after.store.rows_of_pixels, dense, args, tuple(kwargs.items()))
    return None if rows is None else after._replace(store=laid_out(after.store, rows_of_pixels=rows))


@functools.lru_cache(maxsize=MAX_TABLES)
def _lays_out_rows(original: Function, rows: bool, dense: bool, args: Any, kwargs: Any) -> bool | None:
    """Returns whether a function, of rows of pixels or planes, gives rows of pixels, or None if neither."""
    small = torch.zeros((6, 7, 3) if rows else (3, 6, 7), dtype=torch.uint8, device="cpu")
    image = small.permute(2, 0, 1) if rows else small
    image = image if dense else image[:, 1:5, 1:6]
    height, width = image.shape[1:]
    strides = original(image, *args, **dict(kwargs)).stride()
    known = {(1, 3 * width, 3): True, (height * width, width, 1): False}
    return known.get(strides)


def _has_levels(recipe: Recipe) -> bool:
    """Returns whether the values are the pixels' levels."""
    return recipe.store.values is None and recipe.store.dtype == 0


def _in_planes(recipe: Recipe) -> Recipe:
    """The same as torch puts results that are of another size than their input."""
    return recipe._replace(store=laid_out(recipe.store, rows_of_pixels=False))


def _with(recipe: Recipe, chain: Any) -> Recipe | None:
    return None if chain is None else recipe._replace(chain=chain)


# --- methods of torch.Tensor -------------------------------------------------------------------------------


def call_method(
    step: Callable[..., Recipe | None], original: Function, tensor: Any, /, *args: Any, **kwargs: Any
) -> Any:
    """Does what a method of `torch.Tensor` does, later if the tensor is deferred.

    Args:
        step: called with `original`, the tensor's recipe, the tensor, and the further arguments; gives the
            recipe of the result, or None if the original is to be called.
    """
    if type(tensor) is torch.Tensor and is_near(tensor):
        made = _after_method(original, step, tensor, *args, **kwargs)
        if made is not None:
            return made
    return original(tensor, *args, **kwargs)


def _after_method(
    original: Function, step: Callable[..., Recipe | None], tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> torch.Tensor | None:
    found = find(tensor)
    # Of an axis of length 1 torch may change the stride.
    if found is None or not found[1].is_image or (found[1].store.channels == 1 and found[1].axes != "HW"):
        return None
    try:
        after = step(original, found[1], tensor, *args, **kwargs)
    except (TypeError, ValueError, RuntimeError):
        return None  # the original says what is wrong with its arguments
    if after is None or claim(*found) is None:
        return None
    used.count += found[1] is not found[0].recipe  # a part of it alone is decoded
    return after.tensor()


def _by_value(
    original: Function, recipe: Recipe, tensor: torch.Tensor, *args: Any, **kwargs: Any
) -> Recipe | None:
    """Arithmetic with numbers, or a conversion, of every value."""
    if tensor.dtype is _CONVERTED.get(original):
        return None  # the tensor itself is the result
    if any(isinstance(argument, (list, tuple)) for argument in (*args, *kwargs.values())):
        return None
    return change_levels(original, recipe, True, *args, **kwargs)


def _to(original: Function, recipe: Recipe, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Recipe | None:
    """A conversion to a dtype, rather than to a device or a layout."""
    dtype = args[0] if len(args) == 1 and not kwargs else kwargs.get("dtype")
    usual = isinstance(dtype, torch.dtype) and len(args) + len(kwargs) == 1
    return _by_value(original, recipe, tensor, dtype) if usual and dtype is not tensor.dtype else None


def _contiguous(original: Function, recipe: Recipe, tensor: torch.Tensor) -> Recipe | None:  # noqa: ARG001
    if tensor.is_contiguous():
        return None  # the tensor itself is the result
    return recipe._replace(store=laid_out(recipe.store, rows_of_pixels=recipe.axes != "CHW"))


_CONVERTED: dict[Any, torch.dtype] = {torch.Tensor.float: torch.float32, torch.Tensor.long: torch.int64}
METHODS: dict[str, Callable[..., Recipe | None]] = {
    "__truediv__": _by_value,
    "contiguous": _contiguous,
    "div": _by_value,
    "float": _by_value,
    "long": _by_value,
    "to": _to,
}


# --- files -------------------------------------------------------------------------------------------------

AS_STORED, RGB = 0, ImageReadMode.RGB.value  # modes: the file's own channels, or three
# The sampling factors of luma and chroma for which decoders are compared.
_SAMPLINGS = frozenset(bytes((luma, 0x11, 0x11)) for luma in (0x11, 0x21, 0x22, 0x12))


def decode(original: Function, *args: Any, always_upright: bool = False, **kwargs: Any) -> Any:
    """`torch.ops.image.decode_image` or `decode_jpeg`, or torchcodec's op for JPEGs, which is
    `always_upright`: turns images as EXIF says. The tensor is deferred if the file is a usual JPEG with three
    channels."""
    given = (*args, True) if always_upright else args
    usual = len(given) == 3 and not kwargs and not _torch_compat.is_followed()
    tensor = _decoded(*given) if usual and _alike(original, always_upright) else None
    return original(*args, **kwargs) if tensor is None else tensor


@functools.cache
def _alike(original: Function, always_upright: bool) -> bool:
    """Returns whether an op decodes as native code does."""
    rest = () if always_upright else (False,)
    return decodes_as_pillow(lambda data: original(data, RGB, *rest), upright=always_upright)


def _decoded(file: Any, mode: Any, upright: Any) -> torch.Tensor | None:
    usual = type(file) is torch.Tensor and file.dtype is torch.uint8 and file.ndim == 1
    usual = usual and file.is_contiguous()
    if not usual or mode not in (RGB, AS_STORED) or type(upright) is not bool or file.device.type != "cpu":
        return None
    data = file.numpy().tobytes()
    if not data.startswith(b"\xff\xd8") or not ffi.image_decodes(data):
        return None
    segments = segments_of(data)
    mirrored = UPRIGHT.get(orientation_by_first(segments)) if upright else (False, False)
    # After a quarter turn columns of pixels lie side by side, which no step records.
    if not isinstance(mirrored, tuple) or not _are_usual(segments):
        return None
    flip_x, flip_y = mirrored
    chain = Chain.whole(File(data, ffi.image_size(data)), "RGB")._replace(flip_x=flip_x, flip_y=flip_y)
    tensor = Recipe(chain, RGB_ROWS, "CHW").tensor()
    images.opened.count += tensor is not None
    decoded.count += tensor is not None
    images.large.count += math.prod(chain.shown) >= images.LARGE_PIXELS[JpegImageFile]
    return tensor


def _are_usual(segments: list[tuple[int, bytes]]) -> bool:
    """Returns whether a JPEG has three channels, sampled in one of the ways that are compared."""
    frames = [content for marker, content in segments if marker in (0xC0, 0xC1)]
    usual = len(frames) == 1 and len(frames[0]) == 15 and segments[-1][0] == START_OF_SCAN
    return usual and frames[0][0] == 8 and frames[0][7::3] in _SAMPLINGS


# --- steps by the names of torchvision's functions --------------------------------------------------------

STEPS: dict[str, Step] = {
    # Not contrast: of some images native code isn't certain of the mean, and finds out when it makes them.
    **{
        f"adjust_{name}": functools.partial(_adjusted, which=FACTORS.index(name))
        for name in ("brightness", "saturation", "hue")
    },
    **dict.fromkeys(("invert", "posterize", "solarize"), _leveled),
    "pad": _pad,
    "resize": _resize,
    "resized_crop": _resized_crop,
    "horizontal_flip": functools.partial(_flip, axis="x"),
    "vertical_flip": functools.partial(_flip, axis="y"),
    "normalize": change_levels,
    "to_dtype": change_levels,
}
MASK_STEPS: dict[str, Step] = {
    "resize": _resize_mask,
    "pad": _pad_mask,
    "horizontal_flip": STEPS["horizontal_flip"],
    "vertical_flip": STEPS["vertical_flip"],
    "to_dtype": change_levels,
}
# v1 resizes levels as floats, which native code doesn't.
STEPS_OF_V1: dict[str, Step] = {
    "hflip": STEPS["horizontal_flip"],
    "normalize": change_levels,
    "vflip": STEPS["vertical_flip"],
}


def replacing() -> Iterator[Callable[[], Any] | None]:
    """Has torchvision's functions on tensors, and methods of torch's, record. Gives what undoes each, or None
    if there was nothing to replace."""
    for name, step in STEPS.items():
        build = functools.partial(recording, step=step)
        for kind in (torch.Tensor, tv_tensors.Image):
            yield _torch_compat.replace_kernel(getattr(F, name), kind, build)
    for name, step in MASK_STEPS.items():
        build = functools.partial(recording, step=step)
        yield _torch_compat.replace_kernel(getattr(F, name), tv_tensors.Mask, build)
    for name, step in STEPS_OF_V1.items():
        build = functools.partial(recording, step=step, keeps_class=False)
        yield _torch_compat.replace_implementation("tensor", name, build)
    for name, of_method in METHODS.items():
        yield _torch_compat.replace_method(name, functools.partial(call_method, of_method))
