"""The plan as a whole: what native code is told, and what the user is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from headrace.errors import ConfigError
from headrace.plan import Plan, make_plan
from headrace.plan.segments import NativeSegment
from support.images import image_folder

TRANSFORM = v1.Compose([v1.CenterCrop((8, 6)), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)])


@pytest.fixture
def folder(tmp_path: Path) -> ImageFolder:
    return ImageFolder(image_folder(tmp_path), TRANSFORM)


def native(plan: Plan) -> NativeSegment:
    assert plan.native is not None, plan
    assert not plan.runs_python
    return plan.native


def python(plan: Plan) -> Plan:
    assert plan.runs_python, plan
    assert plan.native is None
    return plan


def test_no_batching_is_python_and_every_reason_is_given(folder: ImageFolder) -> None:
    folder.transform = v1.Compose([v1.Resize(9), v1.ToTensor()])
    told = python(make_plan(folder, batch_size=None))
    assert told.reasons == (
        "output: size varies with the image: give Resize both sizes, or crop at the end",
        "batching: batch_size=None turns batching off: there is no batch to write into",
    )
    folder.transform = TRANSFORM
    assert python(make_plan(folder, batch_size=None)).reasons == told.reasons[1:]


def test_a_cast_that_cuts_fractions_off_is_python(folder: ImageFolder) -> None:
    told = python(make_plan(folder, dtype=torch.uint8))
    assert told.reasons == (
        "cast to uint8: the transform gives torch.float32: a cast to torch.uint8 would cut off fractions",
    )


def test_outputs_that_no_batch_has_are_errors(folder: ImageFolder) -> None:
    with pytest.raises(
        ConfigError, match=r"dtype \(torch.float64\) must be one of torch.uint8, torch.float16"
    ):
        make_plan(folder, dtype=torch.float64)
    with pytest.raises(
        ConfigError, match=r"memory_format \(torch.preserve_format\) must be torch.contiguous"
    ):
        make_plan(folder, memory_format=torch.preserve_format)


def test_a_native_plan_is_checked(folder: ImageFolder) -> None:
    told = native(make_plan(folder))
    with pytest.raises(ValueError, match=r"torch\.float64 isn't one that native code writes"):
        replace(told, table=None, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"torch\.float32 needs a table of levels"):
        replace(told, table=None)
    with pytest.raises(ValueError, match=r"table must be \[3, 256\] of torch.float16"):
        replace(told, dtype=torch.float16)


def test_a_plan_begins_with_what_makes_samples(folder: ImageFolder) -> None:
    end = make_plan(folder, memory_format=torch.channels_last, device=torch.device("cuda")).segments[1:]
    for segments in ((), end):
        with pytest.raises(ValueError, match="must begin with a segment that makes samples"):
            Plan(segments)
