"""Tensors of images that are not made yet.

`to_tensor` of a lazy image gives a `PendingTensor` (see `headrace.lazy.recording`). It knows its shape and
dtype, and where its pixels come from. `torch.stack` of such tensors, which is what collating comes to, has
native code write every image straight into the batch. For anything else that is done to one it is made first;
it is made once, and in-place operations change what it is from then on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import tv_tensors

from headrace import _torch_compat
from headrace.lazy.chain import Chain, Output, render
from headrace.lazy.steps import RGB_ROWS, StandsFor, Store, native_form

DTYPES = {torch.uint8: 0, torch.float16: 1, torch.bfloat16: 2, torch.float32: 3}


class Table:
    """What the levels of an image become.

    Args:
        values: [3, 256], the value of each level of each channel, contiguous; None: the level itself, uint8.
    """

    def __init__(self, values: torch.Tensor | None = None) -> None:
        self.values = values
        self.dtype = torch.uint8 if values is None else values.dtype
        address = None if values is None else values.data_ptr()
        self.planes = Store(address, DTYPES[self.dtype], False, values)
        self.rows_of_pixels = Store(address, DTYPES[self.dtype], True, values)

    def as_image(self) -> torch.Tensor:
        """[3, 1, 256], a new tensor."""
        if self.values is not None:
            return self.values.view(3, 1, 256).clone()
        return torch.arange(256, dtype=torch.uint8).expand(3, 1, 256).contiguous()


LEVELS = Table()


@dataclass(frozen=True, slots=True, eq=False)
class Pixels:
    """An image that is decoded already.

    Attributes:
        rgb: uint8 [height, width, 3], contiguous, and nobody else's.
    """

    rgb: npt.NDArray[np.uint8]

    @property
    def shown(self) -> tuple[int, int]:
        """(width, height)."""
        return self.rgb.shape[1], self.rgb.shape[0]


@dataclass(frozen=True, slots=True, eq=False)
class Erased:
    """A box that is overwritten, in pixels; `value` is [1 or 3, 1, 1] or [3, height, width]."""

    top: int
    left: int
    height: int
    width: int
    value: torch.Tensor

    def write(self, image: torch.Tensor) -> None:
        """Into `image`, [3, height, width]."""
        below, right = self.top + self.height, self.left + self.width
        image[:, self.top : below, self.left : right] = self.value


class Recording:
    """What a pending tensor is to become; tensors that share their memory share this. Safe for threads.

    Attributes:
        source: the image.
        shape: [3, height, width] of the tensor.
        table: what its levels become.
        erased: boxes that are then overwritten.
        rows_of_pixels: whether the tensor's memory is [height, width, 3].
        inference: whether it is an inference tensor, as `torch.inference_mode` makes them.
        value: the tensor, once it was made.
    """

    def __init__(
        self,
        source: Chain | Pixels,
        table: Table = LEVELS,
        erased: tuple[Erased, ...] = (),
        *,
        rows_of_pixels: bool = False,
    ) -> None:
        width, height = source.shown
        self.source = source
        self.shape = (3, height, width)
        self.table = table
        self.erased = erased
        self.rows_of_pixels = rows_of_pixels
        self.inference = torch.is_inference_mode_enabled()
        self.value: torch.Tensor | None = None
        self._written = False
        self._lock = source.file.lock if isinstance(source, Chain) else threading.RLock()
        if isinstance(source, Chain):
            with self._lock:
                source.file.waiting.add(self)

    def copy(self, table: Table | None = None, erased: tuple[Erased, ...] = ()) -> Recording | None:
        """A recording of its own, its levels by another table where one is given, and further boxes
        overwritten; None: the tensor was made."""
        with self._lock:
            if self.value is not None:
                return None
            boxes = (*self.erased, *erased)
            return Recording(self.source, table or self.table, boxes, rows_of_pixels=self.rows_of_pixels)

    def change(self, table: Table | None = None, erased: tuple[Erased, ...] = ()) -> bool:
        """What `copy` does, in place; False, and nothing is changed, where the tensor was made."""
        with self._lock:
            if self.value is not None:
                return False
            self.table, self.erased = table or self.table, (*self.erased, *erased)
            self._written = False
            return True

    def made(self) -> torch.Tensor:
        """The tensor; made now where it was not."""
        with self._lock:
            if self.value is None:
                with torch.inference_mode(self.inference):
                    self.value = self._made()
                self.take(Pixels(_NOTHING))
                self.erased = ()
            return self.value

    def write(self, image: torch.Tensor) -> None:
        """Writes the pixels to `image`, contiguous [3, height, width] of the table's dtype."""
        with self._lock:
            if self._written:  # it is kept for more than one batch: from now on it is not decoded again
                self.made()
            if self.value is not None:
                image.copy_(self.value)
                return
            self._write(image, self.table.planes)
            self._written = True
            if isinstance(self.source, Chain):
                self.source.file.waiting.discard(self)

    def take(self, pixels: Pixels) -> None:
        """Replaces the image by what was decoded of it."""
        with self._lock:
            if isinstance(self.source, Chain):
                self.source.file.waiting.discard(self)
            self.source = pixels

    def _made(self) -> torch.Tensor:
        _, height, width = self.shape
        if self.rows_of_pixels:
            value = torch.empty((height, width, 3), dtype=self.table.dtype).permute(2, 0, 1)
        else:
            value = torch.empty((3, height, width), dtype=self.table.dtype)
        self._write(value, self.table.rows_of_pixels if self.rows_of_pixels else self.table.planes)
        return value

    def _write(self, image: torch.Tensor, store: Store) -> None:
        if isinstance(self.source, Chain):
            self._render(self.source, store, image.data_ptr())
        else:
            _store(self.source, store, image.data_ptr())
        for box in self.erased:
            box.write(image)

    def _render(self, chain: Chain, store: Store, address: int) -> None:
        """Together with whatever else waits for the same file: it is then decoded once."""
        others, memory, outputs = [], [], [Output(chain, store, address)]
        for each in chain.file.waiting:
            if each is self or not isinstance(each.source, Chain) or each.source is chain:
                continue
            rgb = np.empty((*each.source.shown[::-1], 3), np.uint8)
            others.append(each)
            memory.append(rgb)
            outputs.append(Output(each.source, RGB_ROWS, rgb.ctypes.data))
        made = render(chain.file, outputs)
        for each, rgb, done in zip(others, memory, made[1:], strict=True):
            if done:
                each.take(Pixels(rgb))
        if not made[0]:
            _store(Pixels(np.ascontiguousarray(chain.image())), store, address)


_NOTHING = np.empty((0, 0, 3), np.uint8)


def _store(pixels: Pixels, store: Store, address: int) -> None:
    pipeline, draws = native_form((), pixels.shown, store)
    if not pipeline.apply(pixels.rgb, draws, address):
        raise RuntimeError(f"native code has refused an image of {pixels.shown} pixels")


class _StandsForTensor(StandsFor, type(torch.Tensor)):  # type: ignore[misc]
    pass


class PendingTensor(torch.Tensor, metaclass=_StandsForTensor):  # type: ignore[metaclass]
    """An image, [3, height, width], that is made when its values are needed.

    It is an ordinary tensor for whatever is done to it but `type(tensor) is torch.Tensor`.
    """

    stands_for: type[torch.Tensor] = torch.Tensor
    recording: Recording | None = None
    ordinary: torch.Tensor | None = None  # what stands in for it, once it was made

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        pixels = np.asarray(made(self), dtype)
        return pixels.copy() if copy else pixels

    def as_subclass(self, cls: Any) -> Any:
        """As torch's; what comes of it is pending as well, and shares its memory."""
        kind = {torch.Tensor: PendingTensor, tv_tensors.Image: PendingImage}.get(cls)
        if kind is None or not is_pending(self) or self.recording is None:
            return made(self).as_subclass(cls)
        return pending(self.recording, kind)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA and not kwargs and is_pending(args[0]) and _are_numbers(args[1:]):
            return _torch_compat.without_overrides(func, *args)
        handler = _HANDLERS.get(func) if args else None
        result = NotImplemented if handler is None else handler(*args, **kwargs)
        if result is not NotImplemented:
            return result
        args, kwargs = _torch_compat.map_tree(made, (args, kwargs))
        return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        # What torch's own code in C++, or an extension, does to one.
        args, kwargs = _torch_compat.map_tree(made, (args, kwargs or {}))
        return func(*args, **kwargs)


class PendingImage(PendingTensor, tv_tensors.Image):  # type: ignore[misc]
    """The same of torchvision's class for images."""

    stands_for = tv_tensors.Image


def pending(recording: Recording, kind: type[PendingTensor] = PendingTensor) -> torch.Tensor:
    """A tensor that `recording` tells how to make."""
    shape = recording.shape
    _, height, width = shape
    strides = (1, 3 * width, 3) if recording.rows_of_pixels else (height * width, width, 1)
    tensor: Any = _torch_compat.make_wrapper(kind, shape, strides, recording.table.dtype)
    if tensor is None:
        return _as_kind(recording.made(), kind)
    tensor.recording = recording
    return tensor  # type: ignore[no-any-return]


def is_pending(value: Any) -> bool:
    """Whether `value` is a tensor that was not made yet."""
    return isinstance(value, PendingTensor) and value.recording is not None and value.recording.value is None


def made(value: Any) -> Any:
    """`value`, or the ordinary tensor that a pending one is."""
    if not isinstance(value, PendingTensor):
        return value
    if value.ordinary is None:
        kind = type(value).stands_for
        if value.recording is None:  # made of an ordinary tensor by torchvision's `wrap(…, like=…)`
            value.ordinary = _torch_compat.without_overrides(torch.Tensor.as_subclass, value, kind)
        else:
            tensor = value.recording.made()
            with torch.inference_mode(value.recording.inference):
                value.ordinary = _as_kind(tensor, type(value))
    return value.ordinary


def _is_plain(tensor: Any) -> bool:
    if is_pending(tensor):
        return True
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_quantized)
    )


def _are_numbers(args: tuple[Any, ...]) -> bool:
    return all(type(each) is int for each in args)


def _as_kind(value: torch.Tensor, kind: type[PendingTensor]) -> torch.Tensor:
    return value if kind.stands_for is torch.Tensor else value.as_subclass(kind.stands_for)


# Each takes what torch's function is called with, and leaves to torch what is unusual.


def _stack(tensors: Any, *args: Any, out: Any = None, **kwargs: Any) -> Any:
    dims = (*args, *kwargs.values())
    if out is not None or len(dims) > 1 or not kwargs.keys() <= {"dim"}:
        return NotImplemented
    if not _are_numbers(dims) or any(dims):
        return NotImplemented
    if not isinstance(tensors, (list, tuple)) or not any(map(is_pending, tensors)):
        return NotImplemented
    first = tensors[0]
    if not all(
        _is_plain(each) and each.shape == first.shape and each.dtype == first.dtype for each in tensors
    ):
        return NotImplemented
    out = take_memory((len(tensors), *first.shape), first.dtype)
    for image, tensor in zip(out, tensors, strict=True):
        if isinstance(tensor, PendingTensor) and tensor.recording is not None:
            tensor.recording.write(image)
        else:
            image.copy_(tensor)
    return out


def _requires_grad(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return tensor if is_pending(tensor) and args == (False,) and not kwargs else NotImplemented


def _clone(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if args or kwargs else _copy(tensor, PendingTensor)


def _clone_method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return NotImplemented if args or kwargs else _copy(tensor, type(tensor))


def _copy(tensor: Any, kind: type[PendingTensor]) -> Any:
    recording = tensor.recording.copy() if is_pending(tensor) else None
    return NotImplemented if recording is None else pending(recording, kind)


_HANDLERS: dict[Any, Callable[..., Any]] = {
    torch.stack: _stack,
    torch.clone: _clone,
    torch.Tensor.clone: _clone_method,
    torch.Tensor.requires_grad_: _requires_grad,
}

# What is the same for a tensor that was not made.
_ATTRIBUTES = (
    *("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf", "grad_fn", "grad"),
    *("is_nested", "is_quantized", "is_sparse", "is_cuda", "is_meta"),
)
_METADATA = {
    *(getattr(torch.Tensor, name).__get__ for name in _ATTRIBUTES),
    *(torch.Tensor.size, torch.Tensor.dim, torch.Tensor.numel, torch.Tensor.stride, torch.Tensor.__len__),
    *(torch.Tensor.is_floating_point, torch.Tensor.is_complex, torch.Tensor.is_contiguous),
    *(torch.Tensor.element_size, torch.is_floating_point, torch.is_complex, torch.numel),
}


def new_memory(nbytes: int) -> torch.Tensor:
    """uint8 [nbytes]."""
    return torch.empty(nbytes, dtype=torch.uint8)


_memory: Callable[[int], torch.Tensor] = new_memory


def use_memory(memory: Callable[[int], torch.Tensor]) -> None:
    """Batches are made in memory of `memory` from now on, which is given a number of bytes."""
    global _memory
    _memory = memory


def take_memory(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory for a batch."""
    count = 1
    for edge in shape:
        count *= edge
    return _memory(count * dtype.itemsize)[: count * dtype.itemsize].view(dtype).view(shape)
