"""Image processors of Hugging Face's transformers on deferred images, if the program has imported them.

Processors of torchvision's backend run as written. Only what they do to pixels by other means than the
functions that are recorded everywhere is recorded here: levels become values, and images become patches.
transformers itself is never imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import torch

from headrace.deferred import images, tensors
from headrace.deferred.arrays import PATCHES, recipe_of
from headrace.deferred.steps import laid_out
from headrace.transforms.changed import is_librarys

Function = Callable[..., Any]

BACKEND = ("transformers.image_processing_backends", "TorchvisionBackend")
# What `rescale_and_normalize` calls.
CALLED = ("_fuse_mean_std_and_rescale_factor", "normalize", "rescale")
CUTTING = ("transformers.models.qwen2_vl.image_processing_qwen2_vl", "Qwen2VLImageProcessor")  # into patches


def methods() -> Iterator[tuple[type, str, Function]]:
    """The methods to be replaced, each with its class, its name, and what takes its place."""
    backend: Any = getattr(sys.modules.get(BACKEND[0]), BACKEND[1], None)
    cutting: Any = getattr(sys.modules.get(CUTTING[0]), CUTTING[1], None)
    known = (
        (backend, "rescale_and_normalize", _values_of),
        (cutting, "patchify", _patches_of),
    )
    for owner, name, function in known:
        original = None if owner is None else vars(owner).get(name)
        if original is not None and is_librarys(original):
            yield owner, name, images.standing_for(original, function)


def _values_of(original: Function, self: Any, pixels: Any, *args: Any, **kwargs: Any) -> Any:
    """`rescale_and_normalize`: float32 of the shape of `pixels`, [3, height, width] or a batch of one."""
    backend = getattr(sys.modules[BACKEND[0]], BACKEND[1])
    if any(getattr(type(self), name) is not vars(backend)[name] or name in vars(self) for name in CALLED):
        return original(self, pixels, *args, **kwargs)
    return tensors.recorded(MethodType(original, self), tensors.change_levels, pixels, *args, **kwargs)


def _patches_of(original: Function, self: Any, pixels: Any, *args: Any, **kwargs: Any) -> Any:
    """`patchify`: [1, patches, values] of a batch of one, and the numbers of rows and columns of patches."""
    numbers: Any = tuple(map(kwargs.get, ("patch_size", "merge_size", "temporal_patch_size")))
    usual = not args and len(kwargs) == 3 and all(type(number) is int and number > 0 for number in numbers)
    usual = usual and type(pixels) is torch.Tensor and pixels.ndim == 4 and len(pixels) == 1
    recipe = recipe_of(pixels[0]) if usual and _cuts_as_expected(original, self, numbers) else None
    if recipe is not None and recipe.axes == "CHW" and recipe.store.channels == 3:
        width, height = recipe.chain.shown
        patch, merged, _ = numbers
        store = laid_out(recipe.store, rows_of_pixels=False)
        cut = recipe._replace(store=store, axes=PATCHES, patches=numbers)
        whole = width % (patch * merged) == 0 and height % (patch * merged) == 0
        tensor = cut.tensor() if whole else None
        if tensor is not None:
            return tensor, height // patch, width // patch
    return original(self, pixels, *args, **kwargs)


_compared: dict[Any, bool] = {}


def _cuts_as_expected(original: Function, self: Any, numbers: tuple[int, int, int]) -> bool:
    """Returns whether the installed library cuts images as native code does: blocks of patches, and in each
    patch each plane as often as there are frames."""
    if (original, numbers) not in _compared:
        patch, merged, frames = numbers
        block = patch * merged
        image = torch.arange(3 * 2 * block * 3 * block).view(3, 2 * block, 3 * block)
        parts = image.view(3, 2, merged, patch, 3, merged, patch).permute(1, 4, 2, 5, 0, 3, 6)
        patches = parts.unsqueeze(5).expand(*parts.shape[:5], frames, patch, patch)
        expected = patches.reshape(1, 6 * merged**2, 3 * frames * patch**2)
        result = original(self, image[None], patch_size=patch, merge_size=merged, temporal_patch_size=frames)
        same = isinstance(result, tuple) and len(result) == 3 and torch.equal(result[0], expected)
        _compared[original, numbers] = same and result[1:] == (2 * merged, 3 * merged)
    return _compared[original, numbers]
