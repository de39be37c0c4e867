"""Image processors of Hugging Face's transformers on deferred images, if the program has imported them.

Processors of torchvision's backend run as written. Only what they do to pixels by other means than
torchvision's functions, which are recorded everywhere, is recorded here: an image becomes a tensor, and
levels become values. transformers itself is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from headrace.deferred import images
from headrace.deferred.arrays import Recipe, recipe_of
from headrace.deferred.steps import Store
from headrace.deferred.tensors import frozen
from headrace.plan.pointwise import LEVELS, look_up_levels
from headrace.transforms.changed import is_librarys

Function = Callable[..., Any]

BACKEND = ("transformers.image_processing_backends", "TorchvisionBackend")
# What `rescale_and_normalize` calls.
CALLED = ("_fuse_mean_std_and_rescale_factor", "normalize", "rescale")
PLANES = Store(None, 0, False)
MAX_TABLES = 64


def methods() -> Iterator[tuple[type, str, Function]]:
    """The methods to be replaced, each with its class, its name, and what takes its place."""
    backend = getattr(sys.modules.get(BACKEND[0]), BACKEND[1], None)
    if backend is not None:
        for name, function in (("process_image", _tensor_of), ("rescale_and_normalize", _values_of)):
            original = vars(backend).get(name)
            if is_librarys(original):
                yield backend, name, images.standing_for(original, function)


def _tensor_of(original: Function, self: Any, image: Any, *args: Any, **kwargs: Any) -> Any:
    """`process_image`: uint8 [3, height, width] of an RGB image."""
    converts = kwargs.get("do_convert_rgb")
    usual = not args and kwargs.get("device") is None and type(image) in images.KINDS
    if usual and not (converts and image.info.get("transparency") is not None):
        known = image.convert("RGB") if converts and image.mode == "L" else image
        chain = images.chain_of(known) if known.mode == "RGB" else None
        tensor = None if chain is None else Recipe(chain, PLANES, "CHW").tensor()
        if tensor is not None:
            return tensor
    return original(self, image, *args, **kwargs)


def _values_of(original: Function, self: Any, pixels: Any, *args: Any, **kwargs: Any) -> Any:
    """`rescale_and_normalize`: float32 of the shape of `pixels`, uint8 [3, height, width] or a batch of one
    such image."""
    batched = type(pixels) is torch.Tensor and pixels.ndim == 4 and len(pixels) == 1
    recipe = recipe_of(pixels[0] if batched else pixels)
    if recipe is not None and recipe.axes == "CHW" and recipe.store == PLANES:
        values = _table(original, self, args, kwargs)
        if values is not None:
            tensor = recipe._replace(store=Store(values.data_ptr(), 3, False, values)).tensor()
            if tensor is not None:
                return tensor.unsqueeze(0) if batched else tensor
    return original(self, pixels, *args, **kwargs)


_tables: dict[Any, torch.Tensor | None] = {}


def _table(original: Function, self: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """float32 [3, 256]: the value of each level in each channel; None if that isn't all that counts."""
    backend = getattr(sys.modules[BACKEND[0]], BACKEND[1])
    if any(getattr(type(self), name) is not vars(backend)[name] or name in vars(self) for name in CALLED):
        return None
    try:
        key = (torch.get_default_dtype(), *frozen(args, kwargs))
    except TypeError:
        return None
    if key not in _tables:
        if len(_tables) >= MAX_TABLES:
            _tables.clear()
        _tables[key] = _build(lambda pixels: original(self, pixels, *args, **kwargs))
    return _tables[key]


def _build(convert: Function) -> torch.Tensor | None:
    """The table of `convert`, if it gives float32 by a table."""
    with torch.inference_mode(False):
        levels = torch.arange(LEVELS, dtype=torch.uint8, device="cpu").expand(1, 3, 1, LEVELS).contiguous()
        try:
            values = convert(levels)
        except Exception:  # of unusual settings, which the processor will raise itself
            return None
        if type(values) is not torch.Tensor or values.dtype != torch.float32 or values.shape != levels.shape:
            return None
        values = values.view(3, LEVELS).clone()
        noise = torch.from_numpy(np.random.default_rng(0).integers(0, LEVELS, (3, 19, 23), dtype=np.uint8))
        found = convert(noise.unsqueeze(0))[0]
        same = found.is_contiguous() and torch.equal(found, look_up_levels(noise, values))
    return values if same else None
