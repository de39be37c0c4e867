"""Keyed permutations of 0 … n - 1: the image of any position at once, in memory that doesn't grow with n.

Above `TABLE_LIMIT` a position goes through a balanced Feistel network on pairs of digits base ceil(sqrt(n))
(Black, Rogaway: "Ciphers with arbitrary finite domains", CT-RSA 2002): the domain exceeds n by less than
2 * sqrt(n), so that hardly any position has to walk the cycle on. Eight rounds; five are enough against
anyone who has seen as many pairs as the square root of the domain (Patarin: "Security of random Feistel
schemes with 5 or more rounds", CRYPTO 2004). Below it, as so few values could not hide the structure of
any network, the permutation is the order of n keyed random numbers: uniform over all n! by construction.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Indices = npt.NDArray[np.int64]

TABLE_LIMIT = 1 << 16
ROUNDS = 8
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """splitmix64's step (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014): a
    bijection of 64-bit words that changes half of the bits for every one that changes."""
    x = (x + GOLDEN) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


# NumPy takes longer to make a number than to compute with a few dozen.
_GOLDEN, _FIRST, _SECOND = np.uint64(GOLDEN), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)


def mix_words(x: Words) -> Words:
    """`mix` of each word."""
    x = x + _GOLDEN
    x ^= x >> _30
    x *= _FIRST
    x ^= x >> _27
    x *= _SECOND
    x ^= x >> _31
    return x


def key_of(*parts: int) -> int:
    """One 64-bit key from several numbers, whose order matters."""
    key = 0
    for part in parts:
        key = mix(key ^ (part & MASK))
    return key


def random_words(counters: npt.NDArray[np.integer[Any]], key: int) -> Words:
    """The word number `counters[i]` of the stream of `key`, for each i."""
    return mix_words(counters.astype(np.uint64) * _GOLDEN + np.uint64(key))


def permute(positions: npt.NDArray[np.integer[Any]], n: int, key: int) -> Indices:
    """The images of `positions` (each from 0 to n - 1, where n is 1 to 2**62) under the permutation of `key`,
    any 64-bit number."""
    if n <= TABLE_LIMIT:
        return _table(n, key).take(positions)
    return _walk(positions, n, key)


@lru_cache(maxsize=2)
def _counters(n: int) -> Words:
    return np.arange(n, dtype=np.uint64) * _GOLDEN


@lru_cache(maxsize=8)
def _table(n: int, key: int) -> Indices:
    # No two of these words are equal: mix is a bijection, and so is multiplication by an odd number.
    table = mix_words(_counters(n) + np.uint64(key)).argsort()
    table.flags.writeable = False
    return table


def _walk(values: npt.NDArray[np.integer[Any]], n: int, key: int) -> Indices:
    side = math.isqrt(n - 1) + 1
    keys = [key_of(key, number) for number in range(ROUNDS)]
    out = _encrypt(values.astype(np.uint64), side, keys)
    outside = np.flatnonzero(out >= n)
    while outside.size:
        again = _encrypt(out[outside], side, keys)
        out[outside] = again
        outside = outside[again >= n]
    return out.astype(np.int64)


def _encrypt(x: Words, side: int, keys: list[int]) -> Words:
    base = np.uint64(side)
    left, right = np.divmod(x, base)
    for key in keys:
        total = left + _round(right, key, base)
        # The smaller one of these is the remainder: below `base` the subtraction wraps around.
        left, right = right, np.minimum(total, total - base)
    return left * base + right


def _round(half: Words, key: int, base: np.uint64) -> Words:
    # The high 32 bits, scaled to 0 … base - 1.
    return ((mix_words(half + np.uint64(key)) >> np.uint64(32)) * base) >> np.uint64(32)
