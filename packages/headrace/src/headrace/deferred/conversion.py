"""From images to tensors within a `Compose`: what its conversions and `Normalize` come to is done at once.

`ToTensor` and what follows it treat every value by itself, so a table of 256 levels for each channel says
what they do. Native code then decodes a deferred image, and does all that was recorded of it, straight into
the tensor. That happens where the conversion stands: what the transforms return is an ordinary tensor, with
the values, strides and type that torchvision gives it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import nn
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms.v2 import functional as F2  # noqa: N812

from headrace._torch_compat import makes_tensors_on_cpu
from headrace.deferred import images, own_code
from headrace.deferred.arrays import TENSOR_DTYPES, Recipe
from headrace.deferred.chain import Chain, Counter
from headrace.deferred.steps import MAX_TABLES, Store, native_form
from headrace.plan.pointwise import PointwiseTable, build_table, run_suffix
from headrace.transforms import find_op
from headrace.transforms.changed import find_change
from headrace.transforms.levels import ConvertDtype, Normalize, ToTensor

made = Counter()  # tensors

NUMBERS = frozenset((int, float))
DTYPES = TENSOR_DTYPES[1:4]  # of the tables
# What the transforms call. User code may have put something else there.
_CALLED = ((F, ("to_tensor", "pil_to_tensor", "normalize", "convert_image_dtype")), (F2, ("to_image",)))


def _called() -> list[Any]:
    return [getattr(module, name) for module, names in _CALLED for name in names]


_ORIGINALS = _called()
_op_of: Any = functools.lru_cache(maxsize=256)(find_op)


class _Values:
    """The table of a part of a Compose.

    Attributes:
        kind: the class of tensor that it gives.
        store: how native code writes it.
    """

    def __init__(self, table: PointwiseTable, values: torch.Tensor, *, rows_of_pixels: bool) -> None:
        self.kind = table.sample_type
        self.store = Store(values.data_ptr(), TENSOR_DTYPES.index(table.dtype), rows_of_pixels, values)


def composed(original: Callable[..., Any]) -> Callable[..., Any]:
    """`original` is what a Compose does when it is called."""

    @functools.wraps(original)
    def call(self: Any, *inputs: Any, **kwargs: Any) -> Any:
        single = len(inputs) == 1 and not kwargs and isinstance(inputs[0], Image.Image)
        transforms = self.transforms if single else None
        if type(transforms) not in (list, tuple) or not transforms:
            own_code.note_inputs(getattr(self, "transforms", None), inputs)
            return original(self, *inputs, **kwargs)
        return _run(transforms, inputs[0])

    return call


def _run(transforms: Sequence[Any], image: Any) -> Any:
    """Applies `transforms`, which one of them may change, to `image` one after another."""
    position = 0
    while position < len(transforms):
        found = None
        if _op_of(type(transforms[position])) is ToTensor:
            found = _converted(image, transforms, position)
        if found is None:
            if isinstance(image, torch.Tensor):
                own_code.note_tensor(transforms[position])
            image = transforms[position](image)
            position += 1
        else:
            image, position = found
    return image


def _converted(image: Any, transforms: Sequence[Any], first: int) -> tuple[torch.Tensor, int] | None:
    """The tensor of an image and the place of the first transform after it, or None if not made natively."""
    source = _source_of(image)
    if source is None or not makes_tensors_on_cpu():  # torchvision may put what it makes elsewhere
        return None
    end, values = _values_of(transforms, first)
    tensor = None if values is None else _tensor_of(source, values.store)
    if values is None or tensor is None:
        return None
    made.count += 1
    return tensor if values.kind is torch.Tensor else tensor.as_subclass(values.kind), end


def _tensor_of(source: Chain | Image.Image, store: Store) -> torch.Tensor | None:
    if isinstance(source, Chain):
        return Recipe(source, store, "CHW").tensor()
    width, height = source.size
    strides = (1, 3 * width, 3) if store.rows_of_pixels else (height * width, width, 1)
    tensor = torch.empty_strided((3, height, width), strides, dtype=TENSOR_DTYPES[store.dtype])
    pipeline, draws = native_form((), (width, height), store)
    return tensor if pipeline.apply(np.asarray(source), draws, tensor.data_ptr()) else None


def _source_of(image: Any) -> Chain | Image.Image | None:
    """The source of an RGB image's pixels, or None if the image is of another kind."""
    # Of images of one row or column torch takes strides to be equal that are not.
    if not isinstance(image, Image.Image) or image.mode != "RGB" or min(image.size) < 2:
        return None
    known = type(image) in images.KINDS and image.width * image.height >= images.FEWEST_PIXELS
    return images.chain_of(image) or (image if known else None)


_tables: dict[Any, _Values | None] = {}


def _values_of(transforms: Sequence[Any], first: int) -> tuple[int, _Values | None]:
    """The end of the part from `first` on that is a table; and that table, or None if there is none."""
    end = first
    key: list[tuple[Any, ...]] = [(torch.get_default_dtype(),)]
    while end < len(transforms):
        settings = _settings_of(transforms[end], ToTensor if end == first else None)
        if settings is None:
            break
        key.append(settings)
        end += 1
    if end == first or _called() != _ORIGINALS:
        return end, None
    chosen = tuple(key)
    if chosen not in _tables:
        if len(_tables) >= MAX_TABLES:
            _tables.clear()
        _tables[chosen] = _build(transforms[first:end])
    return end, _tables[chosen]


def _settings_of(transform: Any, op: type | None) -> tuple[Any, ...] | None:
    """The settings that a transform's result depends on, or None if it is no conversion or was changed."""
    kind = type(transform)
    known: tuple[Any, ...] = (ConvertDtype, Normalize) if op is None else (op,)
    if _op_of(kind) not in known or find_change(transform) is not None:
        return None
    settings: list[Any] = [kind]
    of_module = isinstance(transform, nn.Module)
    for name, value in vars(transform).items():
        if of_module and (name[0] == "_" or name == "training"):
            continue
        fixed = _fixed(value)
        if fixed is None:
            return None
        settings += (name, fixed)
    return tuple(settings)


def _fixed(setting: Any) -> Any:
    """The current value of a setting, or None if it is of an unusual kind."""
    if type(setting) is torch.Tensor and setting.ndim == 1 and setting.device.type == "cpu":
        usual = len(setting) in (1, 3) and setting.is_floating_point() and not setting.requires_grad
        return (setting.dtype, *setting.tolist()) if usual else None
    if isinstance(setting, (list, tuple)):
        # One number for each channel, or for all of them: others are for rows or columns.
        usual = len(setting) in (1, 3) and NUMBERS.issuperset(map(type, setting))
        return tuple(setting) if usual else None
    return setting if type(setting) in (bool, torch.dtype) else None


def _build(transforms: Sequence[Any]) -> _Values | None:
    with torch.inference_mode(False):
        table = build_table(transforms)
        if isinstance(table, str) or table.values is None or table.dtype not in DTYPES:
            return None  # the transforms themselves raise what there is to raise
        strides = run_suffix(Image.new("RGB", (7, 5)), transforms).stride()
    rows_of_pixels = strides == (1, 21, 3)
    if not rows_of_pixels and strides != (35, 7, 1):
        return None
    return _Values(table, table.values.contiguous(), rows_of_pixels=rows_of_pixels)
