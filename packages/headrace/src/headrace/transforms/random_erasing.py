"""RandomErasing: the last step, done to whole batches of values.

What it draws is computed here, in NumPy, a batch at a time, from the streams of native/src/random.h.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torchvision import transforms as v1
from torchvision.transforms import v2
from typing_extensions import Self

from headrace.order.permutation import MASK, key_of, mix, mix_words
from headrace.records import BatchKeys, SampleKey
from headrace.transforms.op import NoNativeForm, Op
from headrace.transforms.reading import bounds, chance, number, range_text

Words = npt.NDArray[np.uint64]
Boxes = npt.NDArray[np.int64]

TRIES = 10
LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


@dataclass(frozen=True)
class RandomErasing(Op):
    """A random box of the values overwritten with probability `p`, after the conversion.

    Attributes:
        scale: bounds of the box's area as a share of the image's.
        ratio: bounds of its height / width; if none of ten tries fits, nothing is erased.
        value: one number, or one per channel, or None for standard normal noise of float32.
        log_ratio: logarithms of `ratio` for timm's class, which computes in double precision.
        by_channel: whether the noise is one number for each channel.
    """

    p: float
    scale: tuple[float, float]
    ratio: tuple[float, float]
    value: tuple[float, ...] | None
    log_ratio: tuple[float, float] | None = None
    by_channel: bool = False

    matches = (v1.RandomErasing, v2.RandomErasing)
    matches_imported = ("timm.data.random_erasing.RandomErasing",)
    draws = ("top", "left", "height", "width; 0: nothing is erased")
    examples = (
        {"p": 1.0},
        {"p": 0.5, "scale": (0.1, 0.5), "ratio": (0.5, 2.0), "value": 7},
        {"p": 1.0, "value": (0.1, 0.2, 0.3), "inplace": True},
        {"p": 0.9, "value": "random"},
    )

    def __str__(self) -> str:
        scale, ratio = range_text(self.scale), range_text(self.ratio)
        value = ", ".join(f"{v:.4g}" for v in self.value) if self.value else "random"
        value = f"({value})" if self.value and len(self.value) > 1 else value
        return f"RandomErasing(p {self.p:g}, scale {scale}, ratio {ratio}, value {value})"

    @classmethod
    def read(cls, transform: Any) -> Self:
        """`inplace` says nothing about batches: nobody else sees their memory."""
        if not isinstance(transform, cls.matches):
            return cls._read_timms(transform)
        value = transform.value
        if isinstance(value, (int, float)):
            value = (float(value),)
        elif isinstance(value, str) or (value is None and isinstance(transform, v2.Transform)):
            value = None
        elif isinstance(value, (list, tuple)):
            value = tuple(number("value", v) for v in value)
            if len(value) not in (1, 3):
                raise NoNativeForm(f"value {value} must be one number, or one for each of 3 channels")
        else:
            raise NoNativeForm(f"value={value!r} isn't a number, three of them or 'random'")
        scale, ratio = bounds("scale", transform.scale), bounds("ratio", transform.ratio, exclusive=True)
        return cls(chance("p", transform.p), scale, ratio, value)

    @classmethod
    def _read_timms(cls, transform: Any) -> Self:
        if (transform.min_count, transform.max_count) != (1, 1):
            raise NoNativeForm(f"erases up to {transform.max_count} boxes: native code erases one")
        if transform.device != "cpu":
            raise NoNativeForm(f"makes values on {transform.device!r}, where a sample isn't yet")
        noise = transform.per_pixel or transform.rand_color
        low, high = bounds("log_aspect_ratio", transform.log_aspect_ratio, -math.inf)
        scale = bounds("min_area, max_area", (transform.min_area, transform.max_area))
        by_channel = bool(transform.rand_color and not transform.per_pixel)
        ratio = math.exp(low), math.exp(high)
        value = None if noise else (0.0,)
        return cls(chance("probability", transform.probability), scale, ratio, value, (low, high), by_channel)

    def noise_size(self, height: int, width: int) -> tuple[int, int]:
        """(height, width) of the noise for a box of this size; (1, 1) is for all of the box."""
        return (1, 1) if self.by_channel else (height, width)


def draw_boxes(erase: RandomErasing, keys: BatchKeys, step: int, height: int, width: int) -> Boxes:
    """(top, left, height, width) of the box that is erased in each sample, in pixels, int64 [n, 4]; all are 0
    if nothing is erased. `step` is the number of the erasing in the pipeline."""
    boxes = np.zeros((len(keys), 4), np.int64)
    first = random_words(keys, step, blocks=1)[:, 0]
    # As torch compares a float32 tensor with a Python float; timm takes numbers of just `p`, too.
    units = _units(first)
    chosen = np.flatnonzero(units < np.float32(erase.p) if erase.log_ratio is None else units <= erase.p)
    if chosen.size:
        selected = BatchKeys(keys.seed, keys.epoch, keys.samples[chosen], keys.occurrences[chosen])
        words = random_words(selected, step, blocks=-(-(1 + 2 * TRIES + 2) // 4))
        boxes[chosen] = _boxes(erase, words, height, width)
    return boxes


def draw_noise(key: SampleKey, step: int, height: int, width: int) -> npt.NDArray[np.float32]:
    """Standard normal numbers for an erased box: float32 [3, height, width], by NumPy's own generator."""
    generator = np.random.Generator(np.random.Philox(key=key_of(*key, step)))
    return generator.standard_normal((3, height, width), dtype=np.float32)


def random_words(keys: BatchKeys, step: int, *, blocks: int) -> Words:
    """The first 32-bit numbers of each sample's stream for `step`: [n, 4 * blocks]."""
    mixed = mix(mix(keys.seed & MASK) ^ (keys.epoch & MASK))
    occurrences = keys.occurrences.astype(np.uint64)
    key = np.where(occurrences == 0, np.uint64(mixed), mix_words(np.uint64(mixed) ^ occurrences))
    samples = keys.samples.astype(np.uint64)
    shape = (len(keys), blocks)
    counter = [
        np.broadcast_to(np.arange(blocks, dtype=np.uint64), shape),
        np.full(shape, step, np.uint64),
        np.broadcast_to((samples & LOW)[:, None], shape),
        np.broadcast_to((samples >> HALF)[:, None], shape),
    ]
    numbers = _philox(counter, (key & LOW)[:, None], (key >> HALF)[:, None])
    return np.stack(numbers, -1).reshape(len(keys), 4 * blocks)


def _philox(counter: list[Words], key0: Words, key1: Words) -> list[Words]:
    """Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011)."""
    c0, c1, c2, c3 = counter
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (p1 >> HALF) ^ c1 ^ key0, p1 & LOW, (p0 >> HALF) ^ c3 ^ key1, p0 & LOW
        key0, key1 = (key0 + np.uint64(0x9E3779B9)) & LOW, (key1 + np.uint64(0xBB67AE85)) & LOW
    return [c0, c1, c2, c3]


def _boxes(erase: RandomErasing, words: Words, height: int, width: int) -> Boxes:
    """Boxes by torchvision's get_params, or timm's, from the numbers after the first: [n, 4]."""
    tries = words[:, 1 : 1 + 2 * TRIES].reshape(-1, TRIES, 2)
    if erase.log_ratio is None:
        log_ratio = torch.log(torch.tensor(erase.ratio)).tolist()
        area = height * width * _between(tries[..., 0], *erase.scale).astype(np.float64)
        logs = _between(tries[..., 1], *log_ratio)
        # torchvision takes torch's, which NumPy's may differ from in the last bit.
        aspect = torch.exp(torch.from_numpy(logs)).double().numpy()
    else:
        units, (least, most) = _units(tries).astype(np.float64), erase.log_ratio
        area = (erase.scale[0] + (erase.scale[1] - erase.scale[0]) * units[..., 0]) * (height * width)
        exponents = least + (most - least) * units[..., 1]
        aspect = np.array([math.exp(each) for each in exponents.flat]).reshape(exponents.shape)
    high = np.rint(np.sqrt(area * aspect)).astype(np.int64)
    wide = np.rint(np.sqrt(area / aspect)).astype(np.int64)
    fits = (high < height) & (wide < width)
    rows, at = np.arange(len(words)), fits.argmax(1)
    high, wide = high[rows, at], wide[rows, at]
    # The place comes from the two numbers after the try that fitted.
    top = _below(words[rows, 3 + 2 * at], height - high + 1)
    left = _below(words[rows, 4 + 2 * at], width - wide + 1)
    boxes = np.stack((top, left, high, wide), -1)
    boxes[~fits.any(1)] = 0
    return boxes


def _units(words: Words) -> npt.NDArray[np.float32]:
    return (words & np.uint64(0xFFFFFF)).astype(np.float32) * np.float32(2.0**-24)


def _between(words: Words, low: float, high: float) -> npt.NDArray[np.float32]:
    # torch.Tensor.uniform_ on the CPU: 24 bits, in float32.
    bottom, top = np.float32(low), np.float32(high)
    return _units(words) * (top - bottom) + bottom


def _below(words: Words, n: Boxes) -> Boxes:
    return ((words * np.maximum(n, 0).astype(np.uint64)) >> HALF).astype(np.int64)
