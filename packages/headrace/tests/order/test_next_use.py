"""When a sample comes again: known from the order alone."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.order import Order, RepeatedAugmentation, Sequential, Shuffled
from headrace.order.batches import OrderedBatches
from headrace.order.epoch import EpochStart, Position
from headrace.order.permutation import TABLE_LIMIT
from headrace.order.shard import Shard


@pytest.mark.parametrize("order", [Sequential(100), Shuffled(100), Shuffled(TABLE_LIMIT + 3)])
def test_positions_undo_the_order(order: Order) -> None:
    where = np.arange(order.pass_size)
    indices, _ = order.at(where, 5, 2)
    positions = order.positions(indices, 5, 2)
    assert positions is not None
    assert (positions == where).all()


@pytest.mark.parametrize("start", [0, 24])
def test_the_next_use_is_where_the_next_epoch_has_it(start: int) -> None:
    batches = OrderedBatches(Shuffled(60), Shard(rank=1, world_size=2, batch_size=4))
    now = EpochStart(3, (7, 3), (7, 3), position=start)
    rest = [int(i) for batch in batches.begin(now, Position()) for i in batch.indices]
    coming: dict[int, int] = {}
    for rank in range(2):  # whichever rank of the node needs it
        others = OrderedBatches(Shuffled(60), Shard(rank=rank, world_size=2, batch_size=4))
        then = EpochStart(4, (7, 4), (7, 4))
        order = [int(i) for batch in others.begin(then, Position()) for i in batch.indices]
        coming.update({sample: len(rest) + place for place, sample in enumerate(order)})
    assert batches.next_use(now, np.array(rest)) == [coming[sample] for sample in rest]


def test_it_is_not_known_where_there_is_no_quick_way_to_tell() -> None:
    batches = OrderedBatches(RepeatedAugmentation(60), Shard(batch_size=4))
    assert batches.next_use(EpochStart(0, (1, 0), (1, 0)), np.arange(3)) == [None] * 3
