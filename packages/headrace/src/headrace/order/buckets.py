"""Batches of samples that belong together, such as images of one aspect ratio."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from torch.utils.data import Sampler

from headrace.errors import ConfigError
from headrace.order.permutation import Indices, key_of, permute
from headrace.order.shard import detect_rank

# Keeps keys apart from those of other orders.
BUCKET, BATCH = 0x6275636B, 0x62617463


class BucketSampler(Sampler[list[int]]):
    """Batches that each hold samples of a single bucket, for the `batch_sampler` of any DataLoader.

    With several ranks, the batches that they get at one step are of one bucket, of equal lengths, and have no
    sample in common. The order of the batches and the samples in them depend on (seed, epoch) alone. Each
    iteration is the next epoch; `set_epoch` sets its number. `headrace.DataLoader` resumes it in the middle
    of an epoch, as other loaders do that save the state of their batch sampler.

    Args:
        buckets: [samples], the bucket of each sample of the dataset: numbers, strings or tuples.
        batch_size: number of samples in a batch of a rank, or a mapping from each bucket to it.
        shuffle: whether samples and batches come in a random order (the default). Otherwise the buckets come
            one after another, as they first occur, and their samples by index.
        seed: 0 to 2**64 - 1.
        rank, world_size: of the processes that share the epoch. By default those of torch.distributed or of
            torchrun's environment.
        remainder: what happens to the last samples of a bucket. "pad" (the default) makes a smaller batch of
            them and repeats as many as it takes for all ranks to get equally many; "drop" leaves them out
            unless they fill a batch of every rank.

    Raises:
        ConfigError: a size isn't positive, a bucket has none, or the rank isn't one of `world_size`.
    """

    def __init__(
        self,
        buckets: Sequence[Hashable] | npt.NDArray[Any],
        batch_size: int | Mapping[Any, int],
        *,
        shuffle: bool = True,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        remainder: Literal["pad", "drop"] = "pad",
    ) -> None:
        detected = detect_rank()
        self.rank = detected[0] if rank is None else rank
        self.world_size = detected[1] if world_size is None else world_size
        if not 0 <= self.rank < self.world_size:
            raise ConfigError(f"rank ({self.rank}) must be 0 to world_size - 1 ({self.world_size - 1}).")
        if remainder not in ("pad", "drop"):
            raise ConfigError(f"remainder ({remainder!r}) must be 'pad' or 'drop'.")
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.remainder = remainder
        members: dict[Hashable, list[int]] = {}
        values = buckets.tolist() if isinstance(buckets, np.ndarray) else buckets
        for index, bucket in enumerate(values):
            members.setdefault(tuple(bucket) if isinstance(bucket, list) else bucket, []).append(index)
        self._members: list[Indices] = [np.array(each, dtype=np.int64) for each in members.values()]
        self._sizes = [_size_of(bucket, batch_size) for bucket in members]
        self._yielded = 0  # batches of the epoch in progress
        self._resumes_after = 0  # batches of the next epoch that are left out

    @classmethod
    def by_size(
        cls,
        sizes: npt.NDArray[np.integer[Any]] | Sequence[tuple[int, int]],
        bucket: Callable[[int, int], Hashable],
        batch_size: int | Mapping[Any, int],
        **options: Any,
    ) -> BucketSampler:
        """Buckets by the sizes of images.

        Args:
            sizes: [samples, 2], width and height of each image in pixels, by `headrace.image_sizes`.
            bucket: called with (width, height) once for each size that occurs. Returns the bucket.
            batch_size: see the class.
            **options: the other arguments of the class.
        """
        distinct, of_sample = np.unique(np.asarray(sizes), axis=0, return_inverse=True)
        names = [bucket(width, height) for width, height in distinct.tolist()]
        return cls([names[number] for number in of_sample.reshape(-1).tolist()], batch_size, **options)

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch."""
        self.epoch = epoch
        self._resumes_after = 0

    def state_dict(self) -> dict[str, int]:
        """The epoch in progress and the number of its batches so far."""
        return {"epoch": self.epoch - 1 if self._yielded else self.epoch, "batches": self._yielded}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration continues after the batches of a state."""
        self.epoch, self._resumes_after = state["epoch"], state["batches"]

    def __len__(self) -> int:
        return sum(map(self._count, self._members, self._sizes))

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = self.epoch, self._resumes_after
        self.epoch, self._resumes_after, self._yielded = epoch + 1, 0, first
        batches = self._batches(epoch)
        order: Indices = np.arange(len(batches))
        if self.shuffle and len(order):
            order = permute(order, len(order), key_of(self.seed, epoch, BATCH))
        for number in order[first:].tolist():
            self._yielded += 1
            yield batches[number].tolist()
        self._yielded = 0

    def _batches(self, epoch: int) -> list[Indices]:
        """This rank's batches of an epoch, bucket by bucket."""
        batches = []
        for number, (members, size) in enumerate(zip(self._members, self._sizes, strict=True)):
            whole = size * self.world_size
            if self.shuffle:
                key = key_of(self.seed, epoch, number, BUCKET)
                members = members[permute(np.arange(len(members)), len(members), key)]
            if self.remainder == "pad":
                members = np.resize(members, -(-len(members) // self.world_size) * self.world_size)
            for batch in range(self._count(members, size)):
                batches.append(members[batch * whole + self.rank : (batch + 1) * whole : self.world_size])
        return batches

    def _count(self, members: Indices, size: int) -> int:
        """Number of batches of a bucket."""
        whole = size * self.world_size
        return len(members) // whole if self.remainder == "drop" else -(-len(members) // whole)


def _size_of(bucket: Hashable, batch_size: int | Mapping[Any, int]) -> int:
    size = batch_size if isinstance(batch_size, int) else batch_size.get(bucket)
    if size is None:
        raise ConfigError(f"batch_size has no entry for the bucket {bucket!r}.")
    if size < 1:
        raise ConfigError(f"batch_size ({size}) of the bucket {bucket!r} must be 1 or more.")
    return size
