"""The batches that the sampler objects of a loader stand for: derived at each iter(), as in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from headrace.errors import ConfigError
from headrace.order.batches import OrderedBatches, SampledBatches, length_of
from headrace.order.samplers import Order, Sequential, Shuffled
from headrace.order.shard import Remainder, Shard

# Samplers that are looked through, one within the other.
DEEPEST = 8


@dataclass(eq=False, slots=True)
class OwnSamplers:
    """The sampler objects that torch's constructor made for a loader, None in place of those that its user
    passed. As long as they are what the loader follows, and nothing but the size of batches was changed on
    them, Headrace's own order takes their place; otherwise the user's objects decide, exactly as in torch.
    """

    sampler: Any
    batch_sampler: Any

    def batches(
        self, sampler: Any, batch_sampler: Any, dataset: Any, ranks: tuple[int, int], remainder: Remainder
    ) -> OrderedBatches | SampledBatches:
        """The batches of a loader with these attributes for the rank and world size `ranks`. Without a batch
        sampler, samples aren't batched."""
        if batch_sampler is not None and not self._makes_batches(batch_sampler):
            samples = length_of(dataset) or 0
            return SampledBatches(batch_sampler, samples, None, drop_last=False, by_batches=True)
        batch_size, drop_last = None, False
        if batch_sampler is not None:
            sampler = batch_sampler.sampler
            batch_size, drop_last = batch_sampler.batch_size, batch_sampler.drop_last
        share = (*ranks, batch_size or 1, drop_last, remainder)
        if isinstance(sampler, Order):
            return OrderedBatches(sampler, Shard(*share))
        kind = type(sampler) if sampler is self.sampler else None
        if kind is SequentialSampler:
            return _ordered(Sequential, len(sampler.data_source), share)
        if kind is RandomSampler and not sampler.replacement and sampler.generator is None:
            size = len(sampler.data_source)
            if sampler.num_samples == size:
                return _ordered(Shuffled, size, share)
        samples = length_of(dataset) or 0
        return SampledBatches(sampler, samples, batch_size, drop_last, by_batches=False)

    def are_followed(self, sampler: Any, batch_sampler: Any) -> bool:
        """Returns whether a loader of these attributes uses nothing but what torch's constructor made."""
        if batch_sampler is None:
            return self.batch_sampler is None and sampler is self.sampler
        return self._makes_batches(batch_sampler) and batch_sampler.sampler is self.sampler

    def check_shareable(self, batches: SampledBatches, rank: Any) -> None:
        """Raises ConfigError if `batches` can't be shared among ranks, though rank `rank` is to get its
        share. "auto" leaves sharing to a sampler that the user passed."""
        if batches.source is self.sampler:
            culprit = "a generator or a changed sampler, whose order is torch's; seed=… gives one that can be"
        elif rank == "auto":
            return
        elif batches.by_batches:
            culprit = "a batch_sampler. rank='auto' leaves that to it"
        else:
            culprit = (
                "a sampler that isn't one of headrace.order (a DistributedSampler shares the epoch itself)."
                " rank='auto' leaves that to it"
            )
        raise ConfigError(f"rank ({rank!r}): the epoch can't be shared among ranks with {culprit}.")

    def _makes_batches(self, batch_sampler: Any) -> bool:
        return batch_sampler is self.batch_sampler and type(batch_sampler) is BatchSampler


@lru_cache(maxsize=64)  # the same one for every epoch
def _ordered(order: Callable[[int], Order], samples: int, share: tuple[Any, ...]) -> OrderedBatches:
    return OrderedBatches(order(samples), Shard(*share))


def wrapped_samplers(sampler: Any) -> Iterator[Any]:
    """`sampler`, the one that it wraps, and so on: each has the next as its attribute `sampler`."""
    for _ in range(DEEPEST):
        if sampler is None:
            return
        yield sampler
        sampler = getattr(sampler, "sampler", None)
