"""Memory of batches is the host's, whatever the default device of torch is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from headrace.engine.slots import Slots, batch_memory

MEMORY: list[Callable[[int], torch.Tensor]] = [
    batch_memory,
    Slots(4096, pinned=False, keep=1).take,
]


@pytest.mark.parametrize("take", MEMORY)
def test_memory_is_on_the_host_where_the_default_device_is_another(
    take: Callable[[int], torch.Tensor],
) -> None:
    with torch.device("meta"):
        assert torch.empty(1).is_meta
        memory = take(4096)
    assert (memory.device.type, memory.dtype, len(memory)) == ("cpu", torch.uint8, 4096)
