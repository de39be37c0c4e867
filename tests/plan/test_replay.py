"""Lowered and replayed with torchvision's own draws, a pipeline gives torchvision's own bits."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms as v1
from torchvision.transforms import InterpolationMode, v2

from headrace.plan.catalogue import GEOMETRY, POINTWISE, Geometry, find_row
from headrace.plan.geometry import NO_EFFECT
from headrace.plan.logical import CenterCrop, RandomCrop
from headrace.plan.pointwise import look_up
from headrace.plan.replay import replay
from headrace.plan.transform import LoweredTransform, lower_transform
from headrace.records import Draw
from support.images import noise
from support.torchvision_draws import call

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def run_torchvision(transforms: list[Any], image: Image.Image, seed: int) -> tuple[Any, list[Draw]]:
    """What torchvision gives, and what it drew for each of `transforms`."""
    torch.manual_seed(seed)
    value: Any = image
    draws = []
    for transform in transforms:
        value, draw = call(transform, value)
        draws.append(draw)
    return value, draws


def run_ours(lowered: LoweredTransform, transforms: list[Any], image: Image.Image, draws: list[Draw]) -> Any:
    """The same through steps, draws and table."""
    kept = [
        draw
        for transform, draw, note in zip(transforms, draws, lowered.notes, strict=True)
        if isinstance(find_row(transform), Geometry) and note.reason != NO_EFFECT
    ]
    replayed = replay(image, lowered.steps, kept)
    assert (replayed.height, replayed.width) == (lowered.height, lowered.width)
    return look_up(replayed, lowered.pointwise.values)


def check(transforms: list[Any], image: Image.Image, seed: int = 0) -> LoweredTransform:
    """Asserts that both give the same bits."""
    lowered = lower_transform(v1.Compose(transforms))
    assert isinstance(lowered, LoweredTransform), lowered
    expected, draws = run_torchvision(transforms, image, seed)
    found = run_ours(lowered, transforms, image, draws)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
    return lowered


# One or more instances of every row of the catalogue's geometry, with every argument it takes.
EXAMPLES: dict[str, list[Any]] = {
    "RandomResizedCrop": [
        lambda api: api.RandomResizedCrop(24),
        lambda api: api.RandomResizedCrop((20, 31), scale=(0.5, 2.0), ratio=(1.0, 3.0), antialias=False),
        lambda api: api.RandomResizedCrop(24, scale=(3.0, 4.0)),  # never fits: the central box
        *[lambda api, n=n: api.RandomResizedCrop(24, interpolation=n) for n in range(6)],
    ],
    "Resize": [
        lambda api: api.Resize((24, 30)),
        lambda api: api.Resize((24, 30), antialias=None),
        *[lambda api, mode=mode: api.Resize((24, 61), interpolation=mode) for mode in InterpolationMode],
        lambda api: v1.Compose([api.Resize(24), api.CenterCrop(20)]),
        lambda api: v1.Compose([api.Resize([30], max_size=33), api.CenterCrop((35, 28))]),
    ],
    "CenterCrop": [lambda api: api.CenterCrop((24, 17)), lambda api: api.CenterCrop((60, 51))],
    "RandomCrop": [
        lambda api: api.RandomCrop((24, 17)),
        lambda api: api.RandomCrop((33, 33)),
        lambda api: api.RandomCrop(41, padding=(3, 4, 5, 6), fill=(1, 2, 3)),
        lambda api: api.RandomCrop(45, padding=(8, 9), padding_mode="edge"),
        lambda api: api.RandomCrop(45, padding=[7], padding_mode="reflect"),
        lambda api: api.RandomCrop(45, padding=7, padding_mode="symmetric"),
        lambda api: api.RandomCrop((50, 60), pad_if_needed=True, fill=9),
        lambda api: api.RandomCrop((50, 60), padding=2, pad_if_needed=True, padding_mode="edge"),
        lambda api: api.RandomCrop((90, 200), pad_if_needed=True, padding_mode="reflect"),
        lambda api: api.RandomCrop((90, 200), pad_if_needed=True, padding_mode="symmetric"),
    ],
    "RandomHorizontalFlip": [
        lambda api, p=p: v1.Compose([api.CenterCrop(20), api.RandomHorizontalFlip(p)])
        for p in (0.0, 0.5, 1.0)
    ],
    "RandomVerticalFlip": [
        lambda api, p=p: v1.Compose([api.CenterCrop(20), api.RandomVerticalFlip(p)]) for p in (0.0, 0.5, 1.0)
    ],
}


def flat(transform: Any) -> list[Any]:
    return list(transform.transforms) if isinstance(transform, v1.Compose) else [transform]


@pytest.mark.filterwarnings("ignore:Anti-alias option is always applied:UserWarning")
@pytest.mark.parametrize(
    ("name", "number"), [(name, i) for name, examples in EXAMPLES.items() for i in range(len(examples))]
)
@pytest.mark.parametrize("api", [v1, v2], ids=["v1", "v2"])
def test_every_row_with_every_argument(api: Any, name: str, number: int) -> None:
    transform = flat(EXAMPLES[name][number](api))
    assert any(type(t) is getattr(api, name) for t in transform)
    for seed, (height, width) in enumerate([(40, 33), (33, 40), (33, 33)]):
        check([*transform, v1.ToTensor()], noise(height, width, seed), seed)


def test_the_examples_cover_the_catalogue() -> None:
    rows = {(row.cls.__name__, row.cls.__module__.split(".")[2]) for row in GEOMETRY}
    assert rows == {(name, api) for name in EXAMPLES for api in ("transforms", "v2")}


def test_the_catalogue_knows_both_apis_alike() -> None:
    """Each geometric class of v1 has a twin in v2 that is read alike, except for RandomCrop's padding."""
    for row in GEOMETRY:
        if row.cls.__module__.startswith("torchvision.transforms.v2"):
            twin = find_row(object.__new__(getattr(v1, row.cls.__name__)))
            assert isinstance(twin, Geometry)
            assert (twin.parity, twin.on_tensor, twin.draws) == (row.parity, row.on_tensor, row.draws)
            assert (twin.read is row.read) == (row.cls is not v2.RandomCrop)


def test_pointwise_rows_name_arguments_that_exist() -> None:
    made = {v1.Normalize: (MEAN, STD), v2.Normalize: (MEAN, STD)}
    for row in POINTWISE:
        if row.shown:
            instance = row.cls(*made.get(row.cls, (torch.float32,)))
            assert all(hasattr(instance, name) for name in row.shown)


def pipelines() -> st.SearchStrategy[list[Any]]:
    """Pipelines of both APIs, many of them odd; some are refused."""
    api = st.sampled_from([v1, v2])
    size = st.tuples(st.integers(1, 40), st.integers(1, 40))
    mode = st.sampled_from(list(InterpolationMode))
    padding = st.none() | st.integers(0, 9) | st.tuples(*[st.integers(0, 9)] * 4)
    modes = st.sampled_from(["constant", "edge", "reflect", "symmetric"])
    geometry = st.one_of(
        st.builds(lambda a, s, m: a.RandomResizedCrop(s, interpolation=m), api, size, mode),
        st.builds(lambda a, s, m: a.Resize(s, interpolation=m), api, size, mode),
        st.builds(lambda a, s: a.Resize(s), api, st.integers(1, 40)),
        st.builds(lambda a, s, m: a.Resize(s, max_size=s + m), api, st.integers(5, 40), st.integers(1, 30)),
        st.builds(lambda a, s: a.CenterCrop(s), api, size),
        st.builds(
            lambda a, s, p, n, m: a.RandomCrop(s, p, n, (1, 2, 3), m),
            api,
            size,
            padding,
            st.booleans(),
            modes,
        ),
        st.builds(lambda a, p: a.RandomHorizontalFlip(p), api, st.sampled_from([0.0, 0.5, 1.0])),
        st.builds(lambda a, p: a.RandomVerticalFlip(p), api, st.sampled_from([0.0, 0.5, 1.0])),
    )
    conversions = st.sampled_from(
        [
            [v1.ToTensor(), v1.Normalize(MEAN, STD)],
            [v1.PILToTensor()],
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
        ]
    )
    before, after = st.lists(geometry, max_size=4), st.lists(geometry, max_size=2)
    return st.builds(lambda b, c, a: [*b, *c[:1], *a, *c[1:]], before, conversions, after)


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(pipelines(), st.integers(1, 50), st.integers(1, 50), st.integers(0, 1000))
def test_whatever_is_lowered_is_exact(transforms: list[Any], height: int, width: int, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lowered = lower_transform(v1.Compose(transforms))
        event("lowered" if isinstance(lowered, LoweredTransform) else "refused")
        assume(isinstance(lowered, LoweredTransform))
        assert isinstance(lowered, LoweredTransform)
        image = noise(height, width, seed)
        try:
            expected, draws = run_torchvision(transforms, image, seed)
        except (ValueError, RuntimeError) as error:
            # Too small for a crop, or a side shrunk to nothing: found out when that picture is loaded.
            event(f"torchvision: {type(error).__name__}")
            return
        found = run_ours(lowered, transforms, image, draws)
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)


def test_a_crop_larger_than_the_picture_is_an_error_as_in_torchvision() -> None:
    with pytest.raises(ValueError, match=r"Required crop size \(50, 20\) is larger than input image size"):
        replay(noise(40, 40), [RandomCrop(50, 20)], [(0, 0, 0, 0)])


def test_steps_and_draws_must_match() -> None:
    with pytest.raises(ValueError, match="1 steps and 0 draws"):
        replay(noise(4, 4), [CenterCrop(2, 2)], [])


def test_the_comparison_can_fail() -> None:
    """A wrong draw must show, or the tests above prove nothing."""
    transforms = [v1.RandomCrop(20), v1.ToTensor()]
    lowered = lower_transform(v1.Compose(transforms))
    assert isinstance(lowered, LoweredTransform)
    expected, draws = run_torchvision(transforms, noise(40, 40), 0)
    top, left, _, _ = draws[0]
    wrong = [((top + 1) % 20, left, 0, 0), draws[1]]
    assert not torch.equal(run_ours(lowered, transforms, noise(40, 40), wrong), expected)
