"""GaussianBlur, in the arithmetic of torch's convolution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.records import Draw
from headrace.transforms.on_tensors import native_pixels, require_v2
from headrace.transforms.op import NO_GRAY, ImageOp, NoNativeForm
from headrace.transforms.reading import bounds, integer, range_text, two

SIGMAS = 1024
MOST_TAPS = 255
OTHER_ORDER = "torch's convolution adds in another order on this machine"


@dataclass(frozen=True)
class GaussianBlur(ImageOp):
    """Blurred with a kernel of `size_x` by `size_y` pixels, whose standard deviation is one of 1,024 equally
    spaced values of `sigma`: torch itself computes their kernels when a plan is made."""

    size_x: int
    size_y: int
    sigma: tuple[float, float]
    is_v2: bool

    native = "gaussian_blur"
    keeps_info = False
    gray_problem = NO_GRAY
    matches = (v1.GaussianBlur, v2.GaussianBlur)
    draws = ("standard deviation, in pixels", "its place among those of the range")
    examples = (
        {"kernel_size": 3},
        {"kernel_size": 1, "sigma": 0.5},
        {"kernel_size": (5, 9), "sigma": (0.1, 0.3)},
        {"kernel_size": 23},
        {"kernel_size": [7, 1], "sigma": (1.5, 5)},
    )

    def __post_init__(self) -> None:
        for size in (self.size_x, self.size_y):
            if not (1 <= size <= MOST_TAPS and size % 2):
                raise NoNativeForm(f"kernel_size ({size}) must be odd, 1 to {MOST_TAPS}")
        bounds("sigma", self.sigma, exclusive=True)

    def __str__(self) -> str:
        return f"GaussianBlur({self.size_x}×{self.size_y}, sigma {range_text(self.sigma)})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        sizes = transform.kernel_size
        if not isinstance(sizes, Sequence) or len(sizes) != 2:
            raise NoNativeForm(f"kernel_size={sizes!r} isn't (x, y)")
        size_x, size_y = (integer("kernel_size", size) for size in sizes)
        op = cls(size_x, size_y, two("sigma", transform.sigma), isinstance(transform, v2.Transform))
        if not torch_convolves_as_expected(op):
            raise NoNativeForm(OTHER_ORDER)
        return op

    @classmethod
    def read_on_tensor(cls, transform: Any) -> Self:
        require_v2(transform)
        op = cls.read(transform)
        if not torch_convolves_as_expected(op, contiguous=True):
            raise NoNativeForm(OTHER_ORDER)
        return op

    @property
    def sigmas(self) -> npt.NDArray[np.float32]:
        """The standard deviations that may be drawn."""
        low, high = (np.float32(bound) for bound in self.sigma)
        count = SIGMAS if high > low else 1
        return (np.arange(count, dtype=np.float32) / np.float32(count)) * (high - low) + low

    def params(self) -> tuple[float, ...]:
        return (self.size_x, self.size_y, len(self.sigmas), *self.sigma)

    def data(self) -> npt.NDArray[np.float32]:
        return _kernels(self)

    def replay(self, image: Any, draw: Draw) -> Any:
        functional = v2.functional if self.is_v2 else v1.functional
        return functional.gaussian_blur(image, [self.size_x, self.size_y], [draw[0], draw[0]])


@lru_cache(maxsize=16)
def _kernels(op: GaussianBlur) -> npt.NDArray[np.float32]:
    """[sigmas, size_x + size_y], those along x first."""
    kernel = partial(_kernel, is_v2=op.is_v2)
    sigmas = op.sigmas.tolist()
    return torch.stack([torch.cat([kernel(op.size_x, s), kernel(op.size_y, s)]) for s in sigmas]).numpy()


def _kernel(size: int, sigma: float, *, is_v2: bool) -> torch.Tensor:
    """A normalized Gaussian in one dimension, by the operations that torchvision computes it with."""
    edge = (size - 1) / (2.0 * 2.0**0.5) if is_v2 else (size - 1) * 0.5
    places = torch.linspace(-edge, edge, steps=size, dtype=torch.float32)
    if is_v2:
        return torch.softmax(places.div(sigma).pow(2).neg(), dim=0)
    weights = torch.exp(-0.5 * (places / sigma).pow(2))
    return weights / weights.sum()


@lru_cache(maxsize=16)
def torch_convolves_as_expected(op: GaussianBlur, *, contiguous: bool = False) -> bool:
    """Returns whether torchvision blurs noise as native code does, by a chain of fused multiply-adds. Images
    that become tensors aren't `contiguous`."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (op.size_y // 2 + 24, op.size_x // 2 + 48, 3), dtype=np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    tensor = tensor.contiguous() if contiguous else tensor
    for sigma in {op.sigmas[0].item(), op.sigmas[-1].item()}:
        blurred = op.replay(tensor, (sigma,)).permute(1, 2, 0).numpy()
        ours = native_pixels(replace(op, sigma=(sigma, sigma)), pixels, (sigma, 0.0))
        if ours is None or not np.array_equal(ours, blurred):
            return False
    return True
