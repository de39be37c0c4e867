"""Orders for `headrace.DataLoader(sampler=…)`: pure functions of (seed, epoch, position).

>>> import headrace.order
>>> order = headrace.order.RepeatedAugmentation(dataset, repeats=3)  # doctest: +SKIP
>>> loader = headrace.DataLoader(dataset, batch_size=256, sampler=order)  # doctest: +SKIP
"""

from headrace.order.buckets import BucketSampler
from headrace.order.mixture import MixtureSampler
from headrace.order.samplers import (
    Endless,
    LocalShuffled,
    Order,
    RepeatedAugmentation,
    Sequential,
    Shuffled,
    Weighted,
)

__all__ = [
    "BucketSampler",
    "Endless",
    "LocalShuffled",
    "MixtureSampler",
    "Order",
    "RepeatedAugmentation",
    "Sequential",
    "Shuffled",
    "Weighted",
]
