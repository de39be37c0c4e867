"""Batches of deferred tensors, which are deferred as well: stacked, padded with zeros, or joined.

As long as nobody touches a batch, native code writes the images straight into the memory that it is sent in.
A collate function that pads makes a tensor of zeros, and copies each image into the corner of its part:
native code then writes the zeros around the images, too. `torch.cat` joins the patches of several images.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torchvision import tv_tensors

from headrace import _torch_compat
from headrace._native import deferred
from headrace.deferred.arrays import (
    PATCHES,
    TENSOR_DTYPES,
    ArrayPiece,
    Recipe,
    address_of,
    find,
    is_near,
    tensor_on,
)
from headrace.deferred.chain import Counter
from headrace.deferred.images import standing_for
from headrace.deferred.steps import laid_out

Function = Callable[..., Any]

FEWEST_NBYTES = 1 << 16  # of zeros; fewer are made at once
in_batches = Counter()  # tensors that became part of a deferred batch


# --- stacks ------------------------------------------------------------------------------------------------


def _stack(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    usual = _is_along_the_first(args, kwargs) and not _torch_compat.is_followed()
    made = _stacked(args[0]) if usual else None
    return original(*args, **kwargs) if made is None else made


def _collate(original: Function, batch: Any, **kwargs: Any) -> Any:
    """Does what `default_collate` does with tensors."""
    made = None if _torch_compat.is_followed() else _stacked(batch)
    return original(batch, **kwargs) if made is None else made


def _is_along_the_first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Returns whether a function's arguments are tensors, and no other axis than the first."""
    axes = (*args[1:], *kwargs.values())
    return len(args) > 0 and kwargs.keys() <= {"dim"} and (not axes or (len(axes) == 1 and axes[0] == 0))


def _stacked(tensors: Any) -> torch.Tensor | None:
    """The deferred tensor that `torch.stack(tensors)` gives, or None if most of them aren't deferred."""
    tensors = _plain(tensors)
    if not any(map(is_near, tensors)) or len({(tensor.dtype, tensor.shape) for tensor in tensors}) > 1:
        return None
    found = [find(tensor) for tensor in tensors]
    axes = {recipe.axes for _, recipe in filter(None, found)}
    if 2 * found.count(None) > len(tensors) or len(axes) != 1 or PATCHES in axes:
        return None
    pieces = [piece for piece, _ in filter(None, found)]
    if any(piece.stacked for piece in pieces):
        for piece in pieces:
            deferred.touch(piece.address)  # once, not again for each stack that it is part of
        return None
    for piece in pieces:
        piece.stacked = True
        piece.note_use()
    if len(tensors) == 1:  # of which a further stack may be made
        return _alone(*found)
    fills = [_fill_of(each, tensor) for each, tensor in zip(found, tensors, strict=True)]
    dtype, shape = tensors[0].dtype, (len(tensors), *tensors[0].shape)
    nbytes = math.prod(shape) * dtype.itemsize
    if None in fills or nbytes > deferred.MOST_STACKED_NBYTES:
        return None
    memory = deferred.Piece(fills, nbytes, layout=0 if "CHW" in axes else 1).take()
    if memory is None:
        return None
    in_batches.count += len(pieces)
    return _tensor_on(memory, dtype, shape)


def _tensor_on(memory: Any, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A contiguous tensor on a buffer."""
    strides = [math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(len(shape))]
    return tensor_on(memory, dtype, shape, strides)


def _plain(tensors: Any) -> Sequence[Any]:
    """A list of plain tensors, or of images or masks, all as plain tensors; or () if it is anything else, or
    torch would make a tensor of another class of it."""
    kinds = set(map(type, tensors)) if type(tensors) in (list, tuple) else set()
    if kinds in ({tv_tensors.Image}, {tv_tensors.Mask}) and not _keeps_type():
        return [tensor.as_subclass(torch.Tensor) for tensor in tensors]
    return list(tensors) if kinds == {torch.Tensor} else ()


def _keeps_type() -> bool:
    """Returns whether torchvision is set to keep the class of its tensors."""
    probe = tv_tensors.Image(torch.empty((1, 1, 1), device="cpu"))
    return type(probe.unsqueeze(0)) is tv_tensors.Image


def _alone(found: tuple[ArrayPiece, Recipe] | None) -> torch.Tensor | None:
    """The stack of one deferred tensor."""
    if found is None:
        return None
    recipe = found[1]
    tensor = recipe._replace(store=laid_out(recipe.store, rows_of_pixels=recipe.axes != "CHW")).tensor()
    return None if tensor is None else tensor.unsqueeze(0)


def _fill_of(found: tuple[ArrayPiece, Recipe] | None, tensor: torch.Tensor) -> Any:
    """The maker of a tensor's values, which may have been touched, or None if they can't be copied."""
    if found is not None:
        piece, recipe = found
        # A fill doesn't depend on the order of axes.
        return piece.fills[0] if recipe[:2] == piece.recipe[:2] else recipe.fill()
    if address_of(tensor) == 0 or tensor.device.type != "cpu":
        return None
    return deferred.CopyFill(tensor.clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy())


# --- patches -----------------------------------------------------------------------------------------------


def _cat(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    usual = _is_along_the_first(args, kwargs) and not _torch_compat.is_followed()
    made = _joined(args[0]) if usual else None
    return original(*args, **kwargs) if made is None else made


def _joined(tensors: Any) -> torch.Tensor | None:
    """The deferred tensor that `torch.cat(tensors)` gives of patches of several images, or None if any of
    them aren't deferred."""
    tensors = _plain(tensors)
    if not all(map(is_near, tensors)) or len({(each.dtype, each.shape[1:]) for each in tensors}) != 1:
        return None
    found = list(filter(None, map(find, tensors)))
    pieces = [piece for piece, recipe in found if recipe.axes == PATCHES and not piece.stacked]
    if len(pieces) < len(tensors) or tensors[0].ndim != 2:
        return None
    ends = list(itertools.accumulate(piece.nbytes for piece in pieces))
    if ends[-1] > deferred.MOST_STACKED_NBYTES:
        return None
    fills = [piece.fills[0] for piece in pieces]
    memory = deferred.Piece(fills, ends[-1], offsets=[0, *ends[:-1]]).take()
    if memory is None:
        return None
    for piece in pieces:
        piece.stacked = True
        piece.note_use()
    in_batches.count += len(pieces)
    return _tensor_on(memory, tensors[0].dtype, (sum(map(len, tensors)), tensors[0].shape[1]))


# --- images of several sizes, padded with zeros ------------------------------------------------------------


class _Zeros(deferred.ZerosPiece):
    """The memory of a tensor of zeros.

    Attributes:
        dtype, shape: of the tensor.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: torch.dtype, shape: Sequence[int]) -> None:
        super().__init__(shape[0], math.prod(shape[1:]) * dtype.itemsize)
        self.dtype, self.shape = dtype, tuple(shape)  # a list may be changed by whoever has it


def _zeros(original: Function, /, *args: Any, **kwargs: Any) -> Any:
    made = _deferred_zeros(_shape_of(args), kwargs, torch.get_default_dtype())
    return original(*args, **kwargs) if made is None else made


def _new_zeros(original: Function, tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
    shape = _shape_of(args)
    plain = tensor.as_subclass(torch.Tensor) if type(tensor) is tv_tensors.Image else tensor
    usual = len(shape) == 4 and type(plain) is torch.Tensor and plain.device.type == "cpu"
    usual = usual and address_of(plain) != 0 and (plain is tensor or not _keeps_type())
    made = _deferred_zeros(shape, kwargs, plain.dtype) if usual else None
    return original(tensor, *args, **kwargs) if made is None else made


def _shape_of(args: tuple[Any, ...]) -> Sequence[Any]:
    return args[0] if len(args) == 1 and isinstance(args[0], (list, tuple)) else args


def _deferred_zeros(shape: Sequence[Any], kwargs: dict[str, Any], dtype: torch.dtype) -> torch.Tensor | None:
    """Zeros that images may be copied to, or None if it isn't likely that any will be: [images, 3, height,
    width], while as many images are deferred."""
    usual = len(shape) == 4 and all(type(n) is int for n in shape) and kwargs.keys() <= {"dtype", "device"}
    if not usual or shape[1] != 3 or min(shape) < 1:
        return None
    device, dtype = kwargs.get("device"), kwargs.get("dtype") or dtype
    on_cpu = device in (None, "cpu") or (isinstance(device, torch.device) and device.type == "cpu")
    if not on_cpu or dtype not in TENSOR_DTYPES or not _torch_compat.makes_tensors_on_cpu():
        return None
    nbytes = math.prod(shape) * dtype.itemsize
    if not FEWEST_NBYTES <= nbytes <= deferred.MOST_STACKED_NBYTES or deferred.counts().live < shape[0]:
        return None
    memory = _Zeros(dtype, shape).take()
    return None if memory is None else _tensor_on(memory, dtype, shape)


def _copy(original: Function, tensor: Any, /, *args: Any, **kwargs: Any) -> Any:
    recorded = len(args) == 1 and not kwargs and _is_zeros(tensor) and _put(tensor, args[0])
    return tensor if recorded else original(tensor, *args, **kwargs)


_PLACES = (int, slice, type(...))


def _setitem(original: Function, tensor: Any, index: Any, value: Any) -> None:
    known = isinstance(value, torch.Tensor) and type(index) is tuple and _is_zeros(tensor)
    known = known and all(type(each) in _PLACES for each in index)
    if not known or not _put(tensor[index], value):
        original(tensor, index, value)


def _is_zeros(tensor: Any) -> bool:
    """Returns whether a tensor may be a part of deferred zeros: a quick test, which most others fail."""
    return type(tensor) is torch.Tensor and is_near(tensor)


def _put(view: torch.Tensor, image: Any) -> bool:
    """Copies a deferred image to the corner of a part of deferred zeros; returns whether it was recorded, so
    that nothing else needs to be done."""
    if type(image) is tv_tensors.Image:
        image = image.as_subclass(torch.Tensor)
    if type(image) is not torch.Tensor or view.ndim != 3 or view.shape != image.shape:
        return False
    address = address_of(view)
    piece = deferred.piece_at(address) if address else None
    if not isinstance(piece, _Zeros) or not piece.dtype is view.dtype is image.dtype:
        return False
    number, beyond = divmod(address - piece.address, piece.each_nbytes)
    _, _, height, width = piece.shape
    inside = view.shape[1] <= height and view.shape[2] <= width
    usual = inside and view.stride() == (height * width, width, 1) and not view.is_inference()
    corner = beyond == 0 and usual and isinstance(piece.fills[number], deferred.CopyFill)
    found = find(image) if corner else None
    if found is None or found[0].stacked or not _is_in_planes(found[1]):
        return False
    found[0].stacked = True
    found[0].note_use()
    if not piece.put(number, found[1]._replace(frame=(height, width)).fill()):
        return False
    torch.autograd.graph.increment_version(view)
    in_batches.count += 1
    return True


def _is_in_planes(recipe: Recipe) -> bool:
    return recipe.is_image and recipe.axes == "CHW" and recipe.store.channels == 3


# --- what is replaced --------------------------------------------------------------------------------------

FUNCTIONS: dict[str, Function] = {"cat": _cat, "stack": _stack, "zeros": _zeros}
METHODS: dict[str, Function] = {"__setitem__": _setitem, "copy_": _copy, "new_zeros": _new_zeros}


def replacing() -> Iterator[Callable[[], Any] | None]:
    """Has functions and methods of torch, and `default_collate`, make deferred batches. Gives what undoes
    each, or None if there was nothing to replace."""
    for name, function in FUNCTIONS.items():
        yield _torch_compat.replace_function(name, function)
    for name, function in METHODS.items():
        yield _torch_compat.replace_method(name, function)
    table = _torch_compat.default_collate_functions()
    if torch.Tensor in table and not _torch_compat.default_collation_changed():
        yield _torch_compat.replace_item(table, torch.Tensor, standing_for(table[torch.Tensor], _collate))
