"""The base classes of ops: what Headrace knows of a transform. Sizes are in pixels, height before width."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import PIL
import torch
from PIL import Image
from torchvision.transforms import v2

from headrace.records import Draw

# How the result compares with that of the transform itself:
#   "exact"  the same bits, whatever the versions
#   "pillow" the bits that the installed Pillow gives: its resize is followed, which version 13 changed
#   "torch"  the bits that torch's own arithmetic gives on a uint8 tensor
Parity = Literal["exact", "pillow", "torch"]
# Whose results an op gives if they differ: Pillow's on images, torch's on uint8 tensors, or OpenCV's on uint8
# arrays.
Arithmetic = Literal["pillow", "torch", "opencv"]

NO_EFFECT = "changes nothing: the image has that size already"
TENSOR_PIXELS = "runs natively on images only, whose pixels differ from a tensor's: put it before ToImage"
NO_GRAY = "isn't proven for images of one channel"

# Far beyond any image, and small enough that products of two sizes fit 64 bits.
MAX_SIZE = 1 << 20


class NoNativeForm(Exception):  # noqa: N818  (a verdict that never leaves the planner, not an error)
    """This transform with these arguments has no native form; the message says why."""


@dataclass(frozen=True)
class Extent:
    """The size of an image, or, if that varies from file to file (not `exact`), lower bounds of it."""

    height: int
    width: int
    exact: bool

    def holds(self, height: int, width: int) -> bool:
        """Returns whether height × width is certain to fit into the image."""
        return self.height >= height and self.width >= width

    def grown(self, height: int, width: int) -> Extent:
        """Returns the extent with that many more rows and columns."""
        return replace(self, height=self.height + height, width=self.width + width)


UNKNOWN = Extent(1, 1, exact=False)


@dataclass(frozen=True)
class Settled:
    """The result of `settle`: how an op runs in its place.

    Attributes:
        op: op that runs, or None if it would change nothing.
        extent: size of the image after it.
        problem: reason why native code can't do it here, or "".
    """

    op: ImageOp | None
    extent: Extent
    problem: str = ""


class Op(ABC):
    """A transform with its arguments. Subclasses are frozen dataclasses, listed in `headrace.transforms.OPS`,
    or read by one that is, for tensors.

    Attributes:
        matches: classes that it is read from.
        matches_imported: the same of packages that Headrace never imports itself, as "module.Class".
        examples: arguments of the matched classes, for tests of exactness, replay and draws.
        v2_examples: the same for classes of torchvision's v2 alone.
        draws: names of the numbers that are drawn for a sample, in the order of a `records.Draw`.
    """

    matches: ClassVar[tuple[type, ...]] = ()
    matches_imported: ClassVar[tuple[str, ...]] = ()
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    v2_examples: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    draws: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, transform: Any) -> Op:
        """The op of an object of a matched class. Raises NoNativeForm if its arguments have no native form.
        The default is for ops that no object is read as."""
        raise NoNativeForm(f"{transform!r} isn't read as {cls.__name__}")

    @abstractmethod
    def __str__(self) -> str:
        """Name and arguments, for `explain()`."""


@dataclass(frozen=True)
class ImageOp(Op):
    """An op from image to image, which native code runs. Gray is carried as three equal channels.

    Attributes:
        arithmetic: whose results it gives; see `Arithmetic`.
        native: its name in native/src/ops.
        torch_native: its name there in torch's arithmetic, if that is another op.
        opencv_native: the same in OpenCV's.
        parity: see `Parity`; that of Pillow's arithmetic.
        tensor_problem: reason why it isn't run natively on a tensor of other values than the levels of an RGB
            image; "" if it gives what the conversion makes of its result on the image.
        gray_problem: reason why it isn't run natively on gray images, mode L; "" if it does to three equal
            channels what torchvision does to one, draws included, which tests/exact/test_ops.py compares.
        views: number of images that it makes of one, which native code puts one below the other.
        keeps_info: whether the result has the `info` (EXIF, DPI, …) of the image before, which user code may
            look at; only of ops that deferred images record.
    """

    arithmetic: Arithmetic = field(default="pillow", kw_only=True)

    native: ClassVar[str]
    torch_native: ClassVar[str] = ""
    opencv_native: ClassVar[str] = ""
    parity: ClassVar[Parity] = "exact"
    views: ClassVar[int] = 1
    tensor_problem: ClassVar[str] = TENSOR_PIXELS
    gray_problem: ClassVar[str] = ""
    keeps_info: ClassVar[bool] = True

    @classmethod
    def read_on_tensor(cls, transform: Any) -> ImageOp:  # noqa: ARG003  (the default refuses all of them)
        """The same as `read`, for an object that is called with a uint8 tensor [3, height, width]."""
        raise NoNativeForm(TENSOR_PIXELS)

    @property
    def native_name(self) -> str:
        """The op's name in native code in its arithmetic."""
        return {"torch": self.torch_native, "opencv": self.opencv_native}.get(self.arithmetic) or self.native

    def params(self) -> tuple[float, ...]:
        """The parameters as the native op takes them, in its order. The default: the fields, None as 0."""
        values = (getattr(self, each.name) or 0 for each in fields(self) if each.name != "arithmetic")
        return tuple(n for value in values for n in (value if isinstance(value, tuple) else (value,)))

    def data(self) -> npt.NDArray[np.float32] | None:
        """Further numbers that the native op takes, if 24 parameters aren't enough."""
        return None

    @abstractmethod
    def replay(self, image: Image.Image, draw: Draw) -> Any:
        """Applies torchvision's functional to `image` (in torch's arithmetic a uint8 tensor) with the
        numbers that were drawn."""

    def extent(self, before: Extent) -> Extent:
        """The size of the image after the op; by default that before it."""
        return before

    def channels(self, before: int) -> int:
        """Channels of the image after the op, 1 or 3; 0: that depends on chance. The default: as before."""
        return before

    def settle(self, before: Extent, *, on_tensor: bool) -> Settled:
        """Returns how the op runs on an image of `before`, or on a tensor of its values if `on_tensor`."""
        return Settled(self, self.extent(before), problem=self.tensor_problem if on_tensor else "")

    def output_size(self, height: int, width: int, draw: Draw) -> tuple[int, int]:
        """(height, width) of the result for an image of height × width."""
        after = self.extent(Extent(height, width, exact=True))
        return after.height, after.width

    @property
    def inside(self) -> tuple[ImageOp, ...]:
        """The ops that this one chooses from."""
        return ()

    def order(self, draw: Draw) -> Sequence[int]:
        """Returns the places of those inside that are applied, in order."""
        raise NotImplementedError(f"{type(self).__name__} holds no other ops")


@dataclass(frozen=True)
class SizedOp(ImageOp):
    """An op whose results are all height × width."""

    height: int
    width: int

    def extent(self, before: Extent) -> Extent:
        return Extent(self.height, self.width, exact=True)


class LevelOp(Op):
    """An op that treats every level of each channel by itself, and draws nothing. The planner runs the user's
    own object on all 256 levels, and looks pixels up in what it gives.
    """

    @classmethod
    @abstractmethod
    def read(cls, transform: Any) -> LevelOp:
        """Raises NoNativeForm only for what might not do the same to all images."""


def flat(ops: Sequence[ImageOp]) -> Iterator[ImageOp]:
    """`ops`, each followed by those inside of it, as native code numbers them."""
    for op in ops:
        yield op
        yield from flat(op.inside)


def applied(ops: Sequence[ImageOp], draws: Sequence[Draw]) -> Iterator[tuple[ImageOp, Draw]]:
    """The ops that are run, and what was drawn for each; `draws[i]` is that of the i-th op of `flat(ops)`.
    Raises ValueError if their numbers differ."""
    count = len(list(flat(ops)))
    if count != len(draws):
        raise ValueError(f"{count} steps and {len(draws)} draws: there must be one draw per step")
    end = 0
    for op in ops:
        begin, end = end, end + 1 + len(list(flat(op.inside)))
        if not op.inside:
            yield op, draws[begin]
            continue
        starts = [begin + 1]
        for inner in op.inside:
            starts.append(starts[-1] + len(list(flat([inner]))))
        for place in op.order(draws[begin]):
            yield from applied(op.inside[place : place + 1], draws[starts[place] : starts[place + 1]])


def replay(image: Image.Image, ops: Sequence[ImageOp], draws: Sequence[Draw]) -> Image.Image:
    """`image` (RGB) after `ops`, by torchvision. Raises ValueError if a crop is too large."""
    for op, draw in applied(ops, draws):
        image = replay_one(op, image, draw)
        if not isinstance(image, Image.Image):
            raise TypeError(f"torchvision gave {type(image).__name__} for an image")
    return image


def replay_one(op: ImageOp, image: Image.Image, draw: Draw) -> Any:
    """`image` after `op`, by torchvision, as a tensor if the op's arithmetic is torch's."""
    if op.arithmetic == "pillow":
        return op.replay(image, draw)
    tensor = op.replay(v2.functional.pil_to_tensor(image), draw)
    return Image.fromarray(np.ascontiguousarray(tensor.permute(1, 2, 0).numpy()))


def parity_of(op: ImageOp) -> Parity:
    """Returns how an op's result compares with that of its transform."""
    return "torch" if op.arithmetic == "torch" else op.parity


def parity_text(parity: Parity) -> str:
    """The words that `explain()` prints for a parity class."""
    if parity == "exact":
        return "exact"
    if parity == "torch":
        major, minor = torch.__version__.split(".")[:2]
        return f"exact (torch {major}.{minor}, uint8)"
    major, minor = PIL.__version__.split(".")[:2]
    return f"exact (Pillow {major}.{minor})"
