"""RandAugment, TrivialAugmentWide and AutoAugment: every operation and magnitude, all sizes, all chances."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.engine.lower import draws_of
from headrace.records import SampleKey
from headrace.transforms.op import replay
from headrace.transforms.policies import CHOICES, OPERATIONS, Policy, RandAugment, TrivialAugmentWide
from support import op_cases
from support.images import noise
from support.lowering import refusal
from support.op_cases import native_drawn, operations_of_torchvision, pipeline_of

SAMPLES = 4000


def read(transform: Any) -> Policy:
    op = op_cases.read(transform)
    assert isinstance(op, Policy)
    return op


@pytest.mark.parametrize("api", [v1, v2])
@pytest.mark.parametrize("interpolation", [v1.InterpolationMode.NEAREST, v1.InterpolationMode.BILINEAR])
def test_each_magnitude_of_each_operation_is_torchvisions(api: Any, interpolation: Any) -> None:
    op = read(api.TrivialAugmentWide(interpolation=interpolation, fill=[3, 60, 255]))
    assert isinstance(op, TrivialAugmentWide)
    image = noise(13, 17, 5)
    for kind, name in enumerate(CHOICES):
        for place in range(31 if op.table.magnitudes[kind] else 1):
            for negative in range(1 + (name in op.table.signed)):
                draw = (kind, place, negative)
                found = native_drawn(op, image, draw)
                assert found is not None
                expected = replay(image, [op], [draw])
                assert np.array_equal(found, np.asarray(expected)), (name, place, negative)


@pytest.mark.parametrize(("bins", "place"), [(31, 9), (31, 15), (31, 30), (11, 7), (10, 9)])
def test_translations_of_all_edges_are_torchvisions(bins: int, place: int) -> None:
    op = read(v1.RandAugment(1, place, bins))
    assert isinstance(op, RandAugment)
    kind, left = OPERATIONS.index("TranslateX"), 0
    for width in [*range(1, 400), *range(400, 4000, 37), 662, 993, 3310]:
        draw = (kind, place, width % 2, *[0] * 27)
        image = noise(1, width, width)
        found = native_drawn(op, image, draw)
        left += found is None
        expected = replay(image, [op], [draw])
        assert found is None or np.array_equal(found, np.asarray(expected)), width
    assert left <= 5  # edges whose translation is a whole number but for rounding


POLICIES = [
    lambda api: api.RandAugment(),
    lambda api: api.TrivialAugmentWide(),
    *(lambda api, policy=policy: api.AutoAugment(policy) for policy in v1.AutoAugmentPolicy),
]


@pytest.mark.parametrize("api", [v1, v2])
@pytest.mark.parametrize("number", range(len(POLICIES)))
def test_operations_are_as_frequent_as_torchvisions(api: Any, number: int) -> None:
    transform = POLICIES[number](api)
    op = read(transform)
    pipeline = pipeline_of([op], 4, 4)
    ours: Counter[tuple[str, bool]] = Counter()
    for index in range(SAMPLES):
        draws = draws_of(pipeline, [op], SampleKey(1, 0, index), 4, 4)
        assert draws is not None
        for step in op.steps(draws[0]):
            ours[step.name, step.negative and op.table.magnitude(step, 4, 4) < 0] += 1
    theirs = operations_of_torchvision(transform, noise(4, 4, 0), SAMPLES)
    assert set(ours) == set(theirs)
    for operation, count in theirs.items():
        # Five standard deviations of the difference of two counts.
        assert abs(count - ours[operation]) < 5 * (count + ours[operation] + 10) ** 0.5, operation


def test_what_isnt_understood_stays_python() -> None:
    changed = v1.AutoAugment()
    changed.policies = [(("Equalize", 0.5, 3), ("Invert", 0.5, None))]
    odd = v1.RandAugment()
    odd._augmentation_space = lambda bins, size: {}
    box = v1.InterpolationMode.BOX
    cases = {
        "a policy has ('Equalize', 0.5, 3)": changed,
        "_augmentation_space replaced on this object": odd,
        "magnitude (40) must be 0 to 30": v1.RandAugment(magnitude=40),
        "num_ops (11) must be 0 to 10": v2.RandAugment(num_ops=11),
        "Pillow warps by nearest, bilinear and bicubic, not box": v2.TrivialAugmentWide(interpolation=box),
        "raises": v1.TrivialAugmentWide(fill=[1, 2]),
        "posterizes to bits that Pillow doesn't have": v1.RandAugment(magnitude=0, num_magnitude_bins=1),
    }
    for why, transform in cases.items():
        assert why in refusal([transform, v1.CenterCrop(8), v1.ToTensor()])


@pytest.mark.parametrize(
    ("transform", "owner", "name"),
    [
        (v1.RandAugment(), v1.RandAugment, "_augmentation_space"),
        (v1.TrivialAugmentWide(), v1.TrivialAugmentWide, "_augmentation_space"),
        (v2.RandAugment(), v2.RandAugment, "_AUGMENTATION_SPACE"),
        (v2.AutoAugment(), None, "_policies"),
    ],
)
def test_a_torchvision_without_its_private_names_runs_as_python(
    transform: Any, owner: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = [transform, v1.CenterCrop(8), v1.ToTensor()]
    assert not refusal(pipeline)
    monkeypatch.delattr(owner or transform, name)
    assert "can't be read: AttributeError" in refusal(pipeline)
