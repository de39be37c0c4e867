"""The table on whole batches: the bits of `look_up`, whatever the layout, the dtype and the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torchvision import transforms as v1

from headrace.device.postprocess import look_up_batch
from headrace.plan.pointwise import OUTPUT_DTYPES, PointwiseTable, as_values, build_table, cast_table, look_up
from support.images import noise

NORMALISED = [v1.ToTensor(), v1.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
FORMATS = [torch.contiguous_format, torch.channels_last]


def values_of(dtype: torch.dtype) -> torch.Tensor:
    table = build_table([v1.PILToTensor()] if dtype == torch.uint8 else NORMALISED)
    assert isinstance(table, PointwiseTable)
    table = cast_table(table, dtype)
    assert isinstance(table, PointwiseTable)
    return as_values(table)


def check(
    device: torch.device, dtype: torch.dtype, given: torch.memory_format, wanted: torch.memory_format
) -> None:
    images = [noise(13, 9, seed) for seed in range(4)]
    values = values_of(dtype)
    expected = torch.stack([look_up(image, values) for image in images])
    levels = torch.stack([look_up(image, None) for image in images]).contiguous(memory_format=given)
    found = look_up_batch(levels.to(device), values.to(device), wanted)
    assert found.is_contiguous(memory_format=wanted)
    assert found.dtype == dtype
    # Bits, not values.
    assert torch.equal(found.cpu().contiguous().view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("given", FORMATS)
@pytest.mark.parametrize("wanted", FORMATS)
def test_the_bits_are_those_of_one_picture(
    dtype: torch.dtype, given: torch.memory_format, wanted: torch.memory_format
) -> None:
    check(torch.device("cpu"), dtype, given, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", OUTPUT_DTYPES)
@pytest.mark.parametrize("given", FORMATS)
@pytest.mark.parametrize("wanted", FORMATS)
def test_tables_are_torchvisions_on_a_device(
    gpu: torch.device, dtype: torch.dtype, given: torch.memory_format, wanted: torch.memory_format
) -> None:
    check(gpu, dtype, given, wanted)


def test_any_number_of_channels_and_images() -> None:
    grey = torch.from_numpy(np.arange(256, dtype=np.uint8).reshape(1, 1, 16, 16))
    values = torch.linspace(-1, 1, 256)[None]
    assert torch.equal(look_up_batch(grey, values).view(-1), values[0])
    assert look_up_batch(grey[:0], values).shape == (0, 1, 16, 16)


def test_nan_and_negative_zero_keep_their_bits() -> None:
    values = torch.zeros(3, 256)
    values[:, 1], values[:, 2] = float("nan"), -0.0
    found = look_up_batch(torch.tensor([0, 1, 2], dtype=torch.uint8).expand(1, 3, 1, 3), values)
    assert torch.equal(found[0, 0, 0].view(torch.int32), values[0, :3].view(torch.int32))
