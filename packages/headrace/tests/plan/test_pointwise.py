"""The table of levels: the very bits that the user's transforms give, or a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from headrace.plan.pointwise import PointwiseTable, build_table, cast_table, look_up, run_suffix
from support.images import noise

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

SUFFIXES = [
    [v1.ToTensor()],
    [v1.ToTensor(), v1.Normalize(MEAN, STD)],
    [v1.ToTensor(), v1.Normalize(MEAN, STD, inplace=True)],
    [v1.ToTensor(), v1.Normalize(torch.tensor(MEAN), torch.tensor(STD))],
    [v1.ToTensor(), v1.Normalize([0.5], [0.5])],
    [v1.PILToTensor()],
    [v1.PILToTensor(), v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)],
    [v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)],
    [v1.ToTensor(), v1.ConvertImageDtype(torch.bfloat16), v1.Normalize(MEAN, STD)],
    [v1.ToTensor(), v1.ConvertImageDtype(torch.uint8)],
    [v2.PILToTensor(), v2.ConvertImageDtype(torch.float32)],
    [v2.ToImage()],
    [v2.ToImage(), v2.ToPureTensor()],
    [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
    [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD, inplace=True)],
    [v2.ToImage(), v2.ToDtype(torch.float32, scale=False)],
    [v2.ToImage(), v2.ToDtype({tv_tensors.Image: torch.float16, "others": None}, scale=True)],
    [v2.ToImage(), v2.ToDtype(torch.bfloat16, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()],
    [v2.Identity(), v2.ToImage(), torch.nn.Identity(), v1.ConvertImageDtype(torch.float32)],
    [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v1.Normalize(MEAN, STD)],
]


def table_of(suffix: list[Any]) -> PointwiseTable:
    table = build_table(suffix)
    assert isinstance(table, PointwiseTable)
    return table


@pytest.mark.parametrize("suffix", SUFFIXES, ids=lambda suffix: " ".join(type(t).__name__ for t in suffix))
def test_looking_up_gives_the_transforms_bits(suffix: list[Any]) -> None:
    image = noise(61, 47)
    expected = run_suffix(image, suffix)
    table = table_of(suffix)
    found = look_up(image, table.values)
    assert found.dtype == expected.dtype == table.dtype
    assert table.sample_type is type(expected)
    assert found.is_contiguous()
    assert torch.equal(found, expected)


@given(
    st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.lists(st.floats(0.01, 9), min_size=3, max_size=3)
)
def test_any_normalisation(mean: list[float], std: list[float]) -> None:
    suffix = [v1.ToTensor(), v1.Normalize(mean, std)]
    image = noise(16, 16)
    assert torch.equal(look_up(image, table_of(suffix).values), run_suffix(image, suffix))


def test_v2_to_tensor_is_known_though_deprecated() -> None:
    with pytest.warns(UserWarning, match="deprecated"):
        suffix = [v2.ToTensor()]
    assert torch.equal(look_up(noise(4, 4), table_of(suffix).values), v1.ToTensor()(noise(4, 4)))


def test_the_levels_themselves_need_no_table() -> None:
    assert table_of([v1.PILToTensor()]).values is None
    assert table_of([v2.ToImage()]).values is None
    assert table_of([v1.ToTensor()]).values is not None


def test_the_users_transforms_keep_their_arguments() -> None:
    normalize = v1.Normalize(torch.tensor(MEAN), torch.tensor(STD), inplace=True)
    table_of([v1.ToTensor(), normalize])
    assert torch.equal(normalize.mean, torch.tensor(MEAN))


@pytest.mark.parametrize(
    ("suffix", "reason"),
    [
        ([v1.Normalize(MEAN, STD)], "raises TypeError: img should be Tensor Image"),
        ([v2.Normalize(MEAN, STD)], r"raises TypeError: Normalize\(\) does not support PIL images"),
        ([v1.ToTensor(), v1.Normalize(MEAN, [0.1, 0.0, 0.1])], "raises ValueError: std evaluated to zero"),
        ([v1.ToTensor(), v1.Normalize([0.5] * 4, [0.5] * 4)], "raises RuntimeError"),
        ([v1.ToTensor(), v1.ToTensor()], "raises TypeError: pic should be PIL Image or ndarray"),
        ([v2.Identity()], "gives Image rather than a tensor: batches can't be made of that"),
        (
            [v1.ToTensor(), v1.ConvertImageDtype(torch.float64)],
            "gives torch.float64: native code writes uint8",
        ),
        ([v1.PILToTensor(), v1.ConvertImageDtype(torch.int32)], "gives torch.int32: native code writes"),
        ([v1.ToTensor(), v1.Normalize(torch.rand(3, 1, 256), 1.0)], "treats pixels by their place"),
        ([v1.ToTensor(), v1.Normalize(torch.tensor(MEAN, requires_grad=True), STD)], "needs gradients"),
    ],
)
def test_refusals(suffix: list[Any], reason: str) -> None:
    table = build_table(suffix)
    assert isinstance(table, str)
    assert reason.replace("\\", "") in table


def test_what_mixes_channels_or_neighbours_is_found_out() -> None:
    """The catalogue lets no such transform in; this is the second lock."""
    for mix in (lambda t: t.flip(0), lambda t: t.roll(1, 2), lambda t: t - t.mean()):
        assert build_table([v1.ToTensor(), mix]) == (
            "treats pixels by their place or channels together: no table of levels can do that"
        )


def test_a_changed_default_dtype_is_followed() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert "gives torch.float64" in str(build_table([v1.ToTensor()]))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_cast_is_torchs(dtype: torch.dtype) -> None:
    image = noise(16, 16)
    for suffix in ([v1.ToTensor(), v1.Normalize(MEAN, STD)], [v1.PILToTensor()]):
        table = cast_table(table_of(suffix), dtype)
        assert isinstance(table, PointwiseTable)
        assert torch.equal(look_up(image, table.values), run_suffix(image, suffix).to(dtype))


def test_casts_that_change_nothing_or_cut_fractions_off() -> None:
    raw, scaled = table_of([v1.PILToTensor()]), table_of([v1.ToTensor()])
    assert cast_table(raw, None) is raw
    assert cast_table(raw, torch.uint8) is raw
    assert cast_table(scaled, torch.uint8) == (
        "the transform gives torch.float32: a cast to torch.uint8 would cut off fractions"
    )


def test_only_images_of_the_tables_mode_are_looked_up() -> None:
    assert look_up(noise(4, 5).convert("L"), None).shape == (1, 4, 5)
    with pytest.raises(ValueError, match="the image must be RGB or L, not CMYK"):
        look_up(noise(4, 4).convert("CMYK"), None)
    with pytest.raises(ValueError, match="values of 3 channels aren't for an image of mode L"):
        look_up(noise(4, 4).convert("L"), torch.zeros(3, 256))
