"""The simulated accelerator computes what the CPU does, and shows what goes wrong without a wait."""

from __future__ import annotations

import copy
import ctypes
import faulthandler
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from accelerator import module as simulated
from support.processes import exit_of_fork

pytestmark = pytest.mark.gpu
DELAY = 3e-4


def some_seed_shows(race: Callable[[], bool], seeds: int = 40) -> bool:
    """Returns whether `race` gives False with the delays of some seed."""
    for seed in range(seeds):
        simulated.configure(seed, DELAY)
        if not race():
            simulated.take_error()
            return True
    return False


def train(device: torch.device, steps: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    layers = [
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36, 5),
    ]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    for _ in range(steps):
        images, labels = torch.randn(4, 3, 8, 8), torch.tensor([0, 1, 2, 3])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images.to(device)), labels.to(device)).backward()
        optimizer.step()
    return [value.detach().cpu() for value in model.state_dict().values()]


def test_training_gives_the_bits_of_the_cpu(gpu: torch.device) -> None:
    for ours, theirs in zip(train(gpu), train(torch.device("cpu")), strict=True):
        assert torch.equal(ours, theirs)


def test_indexing_views_and_reductions(gpu: torch.device) -> None:
    host = torch.arange(24.0).reshape(2, 3, 4)
    cases: list[Callable[[torch.Tensor], Any]] = [
        lambda t: t[:, 1:, ::2],
        lambda t: t.permute(2, 0, 1).contiguous().view(-1),
        lambda t: t[t > 5],
        lambda t: t.nonzero(),
        lambda t: t.sort(descending=True).indices,
        lambda t: t.std(1) + 2,
        lambda t: torch.cat([t, t.to(torch.bfloat16).float()]).cumsum(0),
        lambda t: t.unfold(2, 2, 1).sum().item(),
        lambda t: torch.where(t > 3, t, 0.5).to(torch.int64),
        lambda t: t.clone().index_fill_(0, torch.zeros(1, dtype=torch.int64, device=t.device), 7),
    ]
    for case in cases:
        ours, theirs = case(host.to(gpu)), case(host)
        assert torch.equal(ours.cpu(), theirs) if isinstance(ours, torch.Tensor) else ours == theirs


def test_the_host_cannot_read_device_memory(gpu: torch.device) -> None:
    address = torch.ones(3, device=gpu).data_ptr()
    libc = ctypes.CDLL(None)
    pipe = os.pipe()
    # The kernel refuses such memory as well; a process that touches it dies.
    assert libc.write(pipe[1], ctypes.c_void_p(address), 4) == -1

    def touch() -> None:
        faulthandler.disable()
        ctypes.string_at(address, 4)

    assert exit_of_fork(touch) == -signal.SIGSEGV


def test_streams_are_ordered_in_themselves_and_independent(gpu: torch.device) -> None:
    side = torch.Stream(device=gpu)
    with side:
        simulated.busy(0.05)
        events = [torch.Event(device=gpu, enable_timing=True) for _ in range(2)]
        events[0].record()
        simulated.busy(0.02)
        events[1].record()
    assert not side.query()
    assert not events[0].query()
    torch.ones(3, device=gpu).sum().item()  # on the other stream
    assert not events[1].query()
    with pytest.raises(RuntimeError, match="completed"):
        events[0].elapsed_time(events[1])
    side.synchronize()
    assert side.query()
    assert 20 <= events[0].elapsed_time(events[1]) < 2000


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_that_does_not_wait_reads_nonsense(gpu: torch.device, waits: bool) -> None:
    def right() -> bool:
        side = torch.Stream(device=gpu)
        with side:
            made = torch.full((100,), 1.0).pin_memory().to(gpu, non_blocking=True) + 2
        if waits:
            torch.accelerator.current_stream().wait_stream(side)
        found = bool((made * 2 == 6).all().item())
        side.synchronize()
        return found

    assert some_seed_shows(right) is not waits


@pytest.mark.parametrize("recorded", [True, False])
def test_memory_is_used_again_unless_its_use_was_recorded(gpu: torch.device, recorded: bool) -> None:
    def right() -> bool:
        side, user = torch.Stream(device=gpu), torch.accelerator.current_stream()
        with side:
            made = torch.full((100,), 3.0, device=gpu)
        user.wait_stream(side)
        if recorded:
            made.record_stream(user)
        simulated.busy(0.002)
        twice = made * 2
        del made
        return bool((twice == 6).all().item())

    assert some_seed_shows(right) is not recorded


@pytest.mark.parametrize("forgetful", [True, False])
def test_page_locked_memory_is_kept_for_copies_unless_others_locked_it(
    gpu: torch.device, forgetful: bool
) -> None:
    simulated.configure(forgetful=forgetful)
    host = torch.full((100,), 3.0).pin_memory()
    assert host.is_pinned()
    assert host[50:].is_pinned()
    assert not torch.ones(3).is_pinned()
    simulated.busy(0.02)
    there = host.to(gpu, non_blocking=True)
    del host
    assert bool((there == 3).all().item()) is not forgetful


def test_only_copies_from_page_locked_memory_are_late(gpu: torch.device) -> None:
    for pinned in (False, True):
        host = torch.full((100,), 3.0)
        host = host.pin_memory() if pinned else host
        simulated.busy(0.02)
        there = host.to(gpu, non_blocking=True)
        host.fill_(4.0)
        assert there[7].item() == (4 if pinned else 3)


def test_two_devices(gpu: torch.device) -> None:
    other = torch.device(gpu.type, 1)
    first = torch.arange(5.0, device=gpu) + 1
    second = first.to(other) * 2
    assert second.device == other
    assert torch.equal(second.to(gpu).cpu(), torch.tensor([2.0, 4, 6, 8, 10]))
    with simulated.device(1):
        assert torch.ones(1, device=gpu.type).device == other
    assert torch.accelerator.current_device_index() == 0


def test_generators_follow_their_seeds(gpu: torch.device) -> None:
    def draw() -> tuple[list[float], ...]:
        torch.manual_seed(4)
        own = torch.Generator(device=gpu)
        own.manual_seed(5)
        drawn = (
            torch.rand(3, device=gpu),
            torch.randn(3, device=gpu, generator=own),
            torch.randperm(9, device=gpu),
        )
        return tuple(values.tolist() for values in drawn)

    before = torch.get_rng_state()
    first = draw()
    assert draw() == first
    assert len(set(first[2])) == 9
    torch.set_rng_state(before)


def test_an_error_on_a_stream_comes_with_the_next_wait(gpu: torch.device) -> None:
    torch.ones(3, device=gpu).index_select(0, torch.tensor([5], device=gpu))
    with pytest.raises(RuntimeError, match=r"on a stream of the simulated accelerator: .*out of range"):
        torch.accelerator.current_stream().synchronize()
    torch.accelerator.current_stream().synchronize()


def test_a_fork_can_use_nothing_and_spoils_nothing(gpu: torch.device) -> None:
    kept, dropped = torch.full((9,), 3.0, device=gpu), [torch.full((9,), 4.0, device=gpu)]
    also = dropped[0].view(-1)

    def work() -> None:
        nonlocal also
        del also
        dropped.clear()  # memory that is the parent's
        assert simulated._is_in_bad_fork()
        with pytest.raises(RuntimeError, match="in use when this process was forked"):
            torch.ones(3, device=gpu)

    assert exit_of_fork(work) == 0
    assert torch.equal(kept.cpu() + 1, also.cpu())


def test_models_and_memory_are_copied(gpu: torch.device) -> None:
    model = copy.deepcopy(nn.Linear(3, 2).to(gpu))
    free, total = simulated.mem_get_info(gpu)
    assert 0 < free < total
    simulated.reset_peak_memory_stats(gpu)
    before = simulated.max_memory_allocated(gpu)
    torch.empty(1 << 20, dtype=torch.uint8, device=gpu)
    assert simulated.max_memory_allocated(gpu) == before + (1 << 20)
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(total, device=gpu)
    assert model.weight.cpu().shape == (2, 3)
