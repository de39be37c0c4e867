"""Batches of images of several sizes, on deferred memory: padded with zeros, or one after another.

A collate function that pads makes a tensor of zeros, and copies each image into the corner of its part. As
long as nobody touches them, native code writes the images and the zeros around them straight into the memory
that the batch is sent in. The same goes for patches that `torch.cat` joins.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torchvision import tv_tensors

from headrace._native import deferred
from headrace.deferred.arrays import (
    PATCHES,
    TENSOR_DTYPES,
    Recipe,
    address_of,
    find,
    in_batches,
    is_near,
    tensor_on,
)

FEWEST_NBYTES = 1 << 16  # of zeros; fewer are made at once


class _Zeros(deferred.ZerosPiece):
    """The memory of a tensor of zeros.

    Attributes:
        dtype, shape: of the tensor.
    """

    __slots__ = ("dtype", "shape")

    def __init__(self, dtype: torch.dtype, shape: Sequence[int]) -> None:
        super().__init__(shape[0], math.prod(shape[1:]) * dtype.itemsize)
        self.dtype, self.shape = dtype, tuple(shape)  # a list may be changed by whoever has it


def zeros(dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor | None:
    """Zeros that images may be copied to, or None if it isn't likely that any will be: [images, 3, height,
    width], while as many images are deferred."""
    if len(shape) != 4 or shape[1] != 3 or min(shape) < 1 or dtype not in TENSOR_DTYPES:
        return None
    nbytes = math.prod(shape) * dtype.itemsize
    if not FEWEST_NBYTES <= nbytes <= deferred.MOST_STACKED_NBYTES or deferred.counts().live < shape[0]:
        return None
    memory = _Zeros(dtype, shape).take()
    if memory is None:
        return None
    strides = [math.prod(shape[i + 1 :]) * dtype.itemsize for i in range(4)]
    return tensor_on(memory, dtype, shape, strides)


def put(view: torch.Tensor, image: Any) -> bool:
    """Copies a deferred image to the corner of a part of `zeros`; returns whether it was recorded, so that
    nothing else needs to be done."""
    if type(view) is not torch.Tensor or not is_near(view):
        return False
    if type(image) is tv_tensors.Image:
        image = image.as_subclass(torch.Tensor)
    if view.ndim != 3 or type(image) is not torch.Tensor:
        return False
    address = address_of(view)
    piece = deferred.piece_at(address) if address else None
    if not isinstance(piece, _Zeros) or view.shape != image.shape or view.dtype is not piece.dtype:
        return False
    number, beyond = divmod(address - piece.address, piece.each_nbytes)
    _, _, height, width = piece.shape
    inside = view.shape[1] <= height and view.shape[2] <= width
    usual = inside and view.stride() == (height * width, width, 1) and not view.is_inference()
    corner = beyond == 0 and usual and isinstance(piece.fills[number], deferred.CopyFill)
    found = find(image) if corner and image.dtype is piece.dtype else None
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


def joined(tensors: Sequence[Any]) -> torch.Tensor | None:
    """The deferred tensor that `torch.cat(tensors)` gives of patches of several images, or None if any of
    them aren't deferred."""
    if type(tensors[0]) is not torch.Tensor or not is_near(tensors[0]):
        return None
    if any(type(tensor) is not torch.Tensor or tensor.ndim != 2 for tensor in tensors):
        return None
    pieces = [piece for piece, recipe in filter(None, map(find, tensors)) if recipe.axes == PATCHES]
    first = tensors[0]
    alike = all(tensor.shape[1] == first.shape[1] and tensor.dtype is first.dtype for tensor in tensors)
    if len(pieces) < len(tensors) or not alike or any(piece.stacked for piece in pieces):
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
    row = first.shape[1] * first.dtype.itemsize
    return tensor_on(memory, first.dtype, (ends[-1] // row, first.shape[1]), (row, first.dtype.itemsize))
