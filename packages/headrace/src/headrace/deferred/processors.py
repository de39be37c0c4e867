"""Image processors of Hugging Face's transformers on deferred images, if the program has imported them.

Processors of torchvision's backend run as written. Only what they do to pixels by other means than
torchvision's functions, which are recorded everywhere, is recorded here: an image becomes a tensor, and
levels become values. transformers itself is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

from headrace.deferred import images, tensors
from headrace.deferred.arrays import Recipe
from headrace.deferred.steps import Store
from headrace.transforms.changed import is_librarys

Function = Callable[..., Any]

BACKEND = ("transformers.image_processing_backends", "TorchvisionBackend")
# What `rescale_and_normalize` calls.
CALLED = ("_fuse_mean_std_and_rescale_factor", "normalize", "rescale")
PLANES = Store(None, 0, False)


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
    """`rescale_and_normalize`: float32 of the shape of `pixels`, [3, height, width] or a batch of one."""
    backend = getattr(sys.modules[BACKEND[0]], BACKEND[1])
    if any(getattr(type(self), name) is not vars(backend)[name] or name in vars(self) for name in CALLED):
        return original(self, pixels, *args, **kwargs)
    return tensors.recorded(MethodType(original, self), tensors.change_levels, pixels, *args, **kwargs)
