"""Stacks of deferred tensors, which are deferred as well: by `torch.stack`, and by torch's `default_collate`.

So a batch is made when it is sent, all of it in one native call, or when something touches it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torchvision import tv_tensors

from headrace import _torch_compat
from headrace.deferred.arrays import stacked

Function = Callable[..., Any]


def stacking(original: Function) -> Function:
    """`torch.stack` for deferred tensors, and `original` for others."""

    @functools.wraps(original)
    def stack(*args: Any, **kwargs: Any) -> Any:
        made = _stacked(args[0]) if len(args) == 1 and not kwargs else None
        return original(*args, **kwargs) if made is None else made

    return stack


def _stacked(tensors: Any) -> torch.Tensor | None:
    if type(tensors) not in (list, tuple) or not tensors:
        return None
    if type(tensors[0]) is tv_tensors.Image:  # of which torch makes a plain tensor
        if not all(type(tensor) is tv_tensors.Image for tensor in tensors) or _keeps_type():
            return None
        tensors = [tensor.as_subclass(torch.Tensor) for tensor in tensors]
    return stacked(tensors) if all(type(tensor) is torch.Tensor for tensor in tensors) else None


def _keeps_type() -> bool:
    """Returns whether torchvision is set to keep the class of its tensors."""
    probe = tv_tensors.Image(torch.empty((1, 1, 1), device="cpu"))
    return type(probe.unsqueeze(0)) is tv_tensors.Image


def collating(original: Function) -> Function:
    """The function of `default_collate` for tensors, for deferred ones, and `original` for others."""

    @functools.wraps(original)
    def collate(batch: Any, **kwargs: Any) -> Any:
        made = _stacked(batch)
        return original(batch, **kwargs) if made is None else made

    return collate


def start() -> list[Callable[[], Any]]:
    """From now on batches of deferred tensors are deferred in this process, unless the program has put
    another function in place of torch's. Returns functions that end it."""
    undo = []
    ended = _torch_compat.replace_stack(stacking)
    if ended is not None:
        undo.append(ended)
    functions = _torch_compat.default_collate_functions()
    if torch.Tensor in functions and not _torch_compat.default_collation_changed():
        by_torch = functions[torch.Tensor]
        functions[torch.Tensor] = collating(by_torch)
        undo.append(functools.partial(functions.__setitem__, torch.Tensor, by_torch))
    return undo
