"""The feed on an accelerator: values arrive whole, whatever runs beside them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torchvision import tv_tensors

from headrace.device.prefetcher import DevicePrefetcher

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Batch:
    image: torch.Tensor
    boxes: list[torch.Tensor]


def test_every_kind_of_batch_arrives(gpu: torch.device) -> None:
    image = tv_tensors.Image(torch.arange(12).reshape(3, 2, 2))
    batch = {
        "one": Batch(image, [torch.ones(n, 4) for n in (0, 2)]),
        "packed": pack_sequence([torch.ones(3), torch.ones(2)]),
        "text": ["a", "b"],
    }
    if gpu.type != "simulated":  # torch has no sparse tensors for accelerators from outside
        batch["sparse"] = torch.eye(3).to_sparse()
    feed = DevicePrefetcher(gpu.type)
    moved = feed.receive(feed.send(batch))
    assert type(moved["one"].image) is tv_tensors.Image
    assert moved["one"].image.device == gpu
    assert torch.equal(moved["one"].image.cpu(), image)
    assert [tuple(box.shape) for box in moved["one"].boxes] == [(0, 4), (2, 4)]
    assert moved["packed"].data.device == gpu
    if "sparse" in batch:
        assert moved["sparse"].device == gpu
        assert torch.equal(moved["sparse"].to_dense().cpu(), torch.eye(3))
    assert moved["text"] is batch["text"]
    feed.close()
    assert feed.copied_bytes > 0
    assert feed.copy_seconds > 0


def test_what_is_there_already_is_handed_through(gpu: torch.device) -> None:
    batch = [torch.ones(3, device=gpu), "x"]
    feed = DevicePrefetcher(gpu)
    assert feed.receive(feed.send(batch)) is batch
    assert feed.copied_bytes == 0


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("pinned", [True, False])
def test_memory_is_never_used_again_too_early(gpu: torch.device, depth: int, pinned: bool) -> None:
    """The consumer lags far behind Python, drops each batch at once, and host memory is written again as soon
    as the feed lets go of it: a copy that comes too early, or memory that is reused too early, shows."""
    feed = DevicePrefetcher(gpu, prepare=lambda batch, _: [batch[0] + 1, batch[1]])
    side = 3000 if gpu.type != "simulated" else 30  # which is late by itself
    weight = torch.rand(side, side, device=gpu)
    ahead: deque[Any] = deque()
    results = []
    for k in range(40):
        host = torch.full((1 << 20,), k, dtype=torch.int32)
        host = host.pin_memory() if pinned else host
        ahead.append(feed.send([host, torch.tensor([k])]))
        del host
        if len(ahead) > depth:
            results.append(consume(feed.receive(ahead.popleft()), weight))
    results += [consume(feed.receive(sent), weight) for sent in ahead]
    assert [(low.item(), high.item(), label.item()) for low, high, label in results] == [
        (k + 1, k + 1, k) for k in range(40)
    ]


def consume(batch: Any, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    busy = weight
    for _ in range(4):
        busy = busy @ weight
    late = (busy[0, 0] * 0).to(torch.int32)  # depends on the work, so that it comes after it
    return (batch[0] + late).min(), (batch[0] + late).max(), batch[1] + late


def test_the_consumer_may_be_on_a_stream_of_its_own(gpu: torch.device) -> None:
    feed, own = DevicePrefetcher(gpu), torch.Stream(device=gpu)
    with own:
        batch = feed.receive(feed.send([torch.full((1 << 20,), 3.0).pin_memory()]))
        total = batch[0].sum()
        del batch
        other = feed.receive(feed.send([torch.zeros(1 << 20).pin_memory()]))
    own.synchronize()
    assert total.item() == 3.0 * (1 << 20)
    assert other[0].abs().sum().item() == 0
    assert feed.copied_bytes == 2 << 22
