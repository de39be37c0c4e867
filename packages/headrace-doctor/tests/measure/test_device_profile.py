"""What a profile of steps says of a device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import accelerator
from headrace_doctor.measure.device_profile import Event, device_facts, profiling
from support.python import run_python


def test_waits_are_classified_by_what_they_are_part_of() -> None:
    events = [
        Event("aten::item", 0.000, 0.010, False, 1),
        Event("aten::_local_scalar_dense", 0.001, 0.010, False, 1),
        Event("cudaStreamSynchronize", 0.002, 0.009, False, 1),
        Event("aten::_to_copy", 0.020, 0.030, False, 1),
        Event("aten::copy_", 0.021, 0.030, False, 1),
        Event("cudaMemcpyAsync", 0.021, 0.022, False, 1),
        Event("cudaStreamSynchronize", 0.022, 0.029, False, 1),
        Event("cudaDeviceSynchronize", 0.040, 0.041, False, 1),
        Event("Memcpy HtoD (Pageable -> Device)", 0.021, 0.029, True),
        Event("kernel", 0.025, 0.035, True),
        Event("kernel", 0.030, 0.040, True),
    ]
    facts = device_facts(events, 2, 1000)
    assert facts.synchronise_seconds == pytest.approx((0.007 + 0.001) / 2)
    assert facts.blocking_copy_seconds == pytest.approx(0.007 / 2)
    assert facts.busy_seconds == pytest.approx(0.019 / 2)
    assert facts.synchronisations == {"aten::item": 0.5, "cudaDeviceSynchronize": 0.5}
    assert (facts.pageable_bytes, facts.pinned_bytes) == (1000, 0)


def test_the_profiler_gives_such_events() -> None:
    with profiling() as events:
        total = (torch.rand(64, 64) @ torch.rand(64, 64)).sum()
        total.item()
    names = {event.name for event in events}
    assert {"aten::item", "aten::_local_scalar_dense", "aten::matmul"} <= names
    item = next(event for event in events if event.name == "aten::item")
    assert 0 <= item.end - item.start < 60
    assert not item.on_device


@pytest.mark.gpu
def test_reading_back_is_seen_on_a_gpu(gpu: torch.device) -> None:
    if gpu.type != "cuda":
        pytest.skip("the events are CUDA's")
    x = torch.rand(2048, 2048, device=gpu)
    with profiling() as events:
        for _ in range(3):
            (x @ x).sum().item()
            torch.rand(1 << 22).to(gpu)
    facts = device_facts(events, 3, 1 << 24)
    assert facts.busy_seconds > 0
    assert facts.synchronisations["aten::item"] == pytest.approx(1.0)
    assert facts.synchronise_seconds > 0
    assert facts.blocking_copy_seconds > 0
    assert facts.pageable_bytes == 1 << 24


STEPS = """
import sys
import accelerator
import torch
from headrace_doctor.examine import Job, examined
from headrace_doctor.measure import examination, supplies
from headrace_doctor.measure.observed import DEMAND, Observation
from pathlib import Path

simulated = accelerator.load()
examination.wait_until_quiet = lambda: None
examination.DEMAND_SECONDS = examination.PARTS_SECONDS = supplies.SUPPLY_SECONDS = 0.1
examination.Examination._measure_supplies = lambda *_: None
observation = Observation(["test"], 4, 1)
with examined(observation, Job([], steps=4), Path(sys.argv[1])):
    for _ in torch.utils.data.DataLoader([torch.zeros(8 << 20)] * 1000, batch_size=None):
        simulated.busy(0.03)
print(min(observation.phase(DEMAND).computes))
"""


def test_the_step_alone_takes_as_long_as_the_device(tmp_path: Path) -> None:
    """Which is busy, too, while the batches that come again are copied."""
    try:
        accelerator.build()
    except accelerator.CannotBuildError as error:
        pytest.skip(str(error))
    done = run_python(STEPS, str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) >= 0.03
