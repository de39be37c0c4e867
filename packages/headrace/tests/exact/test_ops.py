"""Every op, with every example of its file: for the same random numbers, torchvision's own bits.

A new op is tested here by being in OPS. The golden draws are those of tests/golden/draws.json: after a
change that is meant, UPDATE_GOLDEN=1, then read the diff. A changed line changes every run that anyone wants
to repeat.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace._native import ffi
from headrace.deferred.steps import PillowOp
from headrace.engine.lower import draws_of
from headrace.plan.pointwise import build_table, look_up
from headrace.plan.transform import READ_SO, LoweredTransform, lower_transform
from headrace.records import Draw, Mode, SampleKey
from headrace.transforms import OPS, RandomCrop, find_op
from headrace.transforms.op import NO_EFFECT, Extent, ImageOp, LevelOp, flat, replay
from support.images import noise
from support.lowering import refusal, refusals
from support.op_cases import CASES, cases, joined, made, native, native_drawn, pipeline_of, read, same
from support.same_numbers import stream, torchvision_drawing
from support.sampling import one_in

GOLDEN = Path(__file__).parents[1] / "golden" / "draws.json"
SEED, EPOCH = 20, 3
SIZES = [(40, 33), (33, 40), (33, 33), (1, 1), (2, 9), (7, 1), (64, 61), (90, 17)]


def theirs(transform: Any, image: Image.Image, index: int, step: int = 0) -> Image.Image | None:
    """What the user's own transform gives, or None if it raises an error for this image."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return joined(drawing(transform, index, itertools.count(step))(image))
        except (ValueError, RuntimeError):
            return None


def carried(image: Image.Image) -> Image.Image:
    """Gray as native code has it: three equal channels."""
    return image.convert("RGB") if image.mode == "L" else image


def drawing(transform: Any, index: int, steps: Iterator[int]) -> Callable[[Any], Any]:
    """`transform`, drawing the numbers of the next step; those that it holds those of the following ones."""
    step = next(steps)
    if hasattr(transform, "transforms"):
        transform = copy.copy(transform)
        transform.transforms = [drawing(inner, index, steps) for inner in transform.transforms]

    def call(image: Any) -> Any:
        with torchvision_drawing(numbers_for(transform, image, stream(SEED, EPOCH, index, step))):
            return transform(image)

    return call


def numbers_for(transform: Any, image: Any, numbers: Iterator[int]) -> Iterator[int]:
    """Those of `numbers` that `transform` draws for `image`."""
    if type(transform) is v2.RandomCrop:
        # Alone of all, it draws no number for a height that leaves it no choice.
        op = read(transform)
        assert isinstance(op, RandomCrop)
        height, width = v1.functional.get_dimensions(image)[1:]
        _, top, _, bottom = op.total_padding(height, width)
        if top + height + bottom == op.height:
            next(numbers)
    if isinstance(transform, (v1.GaussianBlur, v2.GaussianBlur)):
        return (number & 0xFFC000 for number in numbers)  # one of 1,024 standard deviations
    return numbers


def samples(count: int = 2) -> list[tuple[int, Image.Image]]:
    """Numbers of samples, and images of all sizes."""
    made = []
    for index in range(count * len(SIZES)):
        image = noise(*SIZES[index % len(SIZES)], index)
        image.info["comment"] = "kept"
        made.append((index, image))
    return made


@pytest.mark.parametrize("name", CASES)
def test_native_pixels_are_torchvisions_for_the_same_numbers(name: str) -> None:
    transform = made(CASES[name])
    op = read(transform)
    compared = 0
    for index, image in samples():
        key = SampleKey(SEED, EPOCH, index)
        expected = theirs(transform, image, index)
        found = native([op], image, key)
        draws = draws_of(pipeline_of([op]), [op], key, image.width, image.height)
        if expected is None:
            assert found is None
            continue
        expected = carried(expected)
        assert draws is not None
        assert same(replay(image, [op], draws), expected), f"replay of sample {index}, {image.size}: {draws}"
        before = Extent(image.height, image.width, exact=True)
        after = op.extent(before)
        assert after.holds(1, 1) or image.size == (1, 1)
        assert not after.exact or (after.height, after.width) == (expected.height, expected.width)
        if found is not None:
            assert same(found, expected), f"sample {index}, {image.size}: {draws}"
            compared += 1
    assert compared >= 5


def is_for_gray(name: str) -> bool:
    transform = made(CASES[name])
    return read(transform).views == 1 and refusals(transform, mode="L").keys() == {"output"}


GRAY_CASES = [name for name in CASES if is_for_gray(name)]


@pytest.mark.parametrize("name", one_in(4, GRAY_CASES))
def test_gray_images_are_carried_as_three_equal_channels(name: str) -> None:
    transform = made(CASES[name])
    op = read(transform)
    compared = 0
    for index, image in samples(3):
        gray, key = image.convert("L"), SampleKey(SEED, EPOCH, index)
        expected = theirs(transform, gray, index)
        found = native([op], carried(gray), key)
        if expected is None:
            assert found is None
            continue
        assert expected.mode == ("L" if op.channels(1) == 1 else "RGB")
        expected = carried(expected)
        draws = draws_of(pipeline_of([op]), [op], key, image.width, image.height)
        assert draws is not None
        assert same(replay(carried(gray), [op], draws), expected), f"replay of sample {index}, {image.size}"
        if found is not None:
            assert same(found, expected), f"sample {index}, {image.size}: {draws}"
            compared += 1
    assert compared >= 6


def test_ops_that_treat_gray_differently_are_left_to_torchvision() -> None:
    names = " ".join(sorted({name.partition(".")[2].split()[0] for name in set(CASES) - set(GRAY_CASES)}))
    assert "GaussianBlur" in names
    assert "RandomPhotometricDistort" in names
    for name in ("RandomResizedCrop", "CenterCrop", "RandomHorizontalFlip", "Grayscale"):
        assert name not in names


@pytest.mark.parametrize("name", one_in(4, CASES))
def test_the_draws_of_an_op_are_its_own(name: str) -> None:
    """They depend on seed, epoch, sample, occurrence and the step's number, and on nothing else."""
    op = read(made(CASES[name]))

    keys = [SampleKey(a, b, c, d) for a in (1, 2) for b in (0, 1) for c in range(6) for d in (0, 1)]

    def drawn(*steps: ImageOp) -> list[Draw | None]:
        pipeline = pipeline_of(steps)
        draws = [draws_of(pipeline, steps, key, 640, 480) for key in keys]
        return [None if draw is None else draw[len(steps) - 1] for draw in draws]

    first = drawn(op)
    assert first == drawn(op)
    assert all(draw is None or len(draw) == len(op.draws) for draw in first)
    second = drawn(read(v1.RandomHorizontalFlip(0.5)), op)
    assert second == drawn(read(v1.RandomVerticalFlip(1.0)), op)
    varied = len({draw for draw in first if draw is not None})
    if varied > 3:
        assert first != second  # another step's number, other numbers
        assert max(first.count(draw) for draw in first) < len(keys) * 3 // 4


def golden_draws() -> dict[str, list[list[float] | None]]:
    found: dict[str, list[list[float] | None]] = {}
    for name, case in CASES.items():
        op = read(made(case))
        rows = [draws_of(pipeline_of([op]), [op], SampleKey(0, 0, index), 500, 375) for index in range(3)]
        if op.draws:
            found[name] = [
                None if row is None else [number for draw in row for number in draw] for row in rows
            ]
    return found


def test_the_draws_of_a_seed_never_change() -> None:
    found = golden_draws()
    if os.environ.get("UPDATE_GOLDEN"):
        lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found))
        GOLDEN.write_text(f"{{\n{lines}\n}}\n")
    assert found == json.loads(GOLDEN.read_text())


DOCS = Path(__file__).parents[4] / "docs" / "exactness.md"
MARKS = "<!-- table: tests/exact/test_ops.py -->", "<!-- end of table -->"


def table() -> str:
    """The transforms of `OPS`, for the docs."""
    lines = ["| transform | bit-identical with | drawn per sample |", "|---|---|---|"]
    for op in OPS:
        names = sorted({f"`{cls.__name__}`" for cls in op.matches} | {f"`{n}`" for n in op.matches_imported})
        if names:
            pillow = issubclass(op, ImageOp) and op.parity == "pillow"
            equals = "the installed Pillow" if pillow else "every supported version"
            lines.append(f"| {', '.join(names)} | {equals} | {', '.join(op.draws)} |")
    return "\n".join(lines)


def test_the_table_in_the_docs_is_that_of_the_ops() -> None:
    text = DOCS.read_text(encoding="utf-8")
    begin, end = (text.index(mark) for mark in MARKS)
    begin += len(MARKS[0])
    if os.environ.get("UPDATE_GOLDEN"):
        text = f"{text[:begin]}\n{table()}\n{text[end:]}"
        DOCS.write_text(text, encoding="utf-8")
        end = text.index(MARKS[1])
    assert text[begin:end].strip() == table(), "run: UPDATE_GOLDEN=1 pytest tests/exact/test_ops.py"


def chains() -> st.SearchStrategy[list[Any]]:
    """Pipelines of any ops in any order, a conversion somewhere among them; some are refused."""
    transforms = st.sampled_from(list(CASES.values())).map(made)
    conversions = st.sampled_from(
        [
            [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.25] * 3)],
            [v1.ToTensor(), v1.Normalize([0.5], [0.25])],
            [v1.PILToTensor()],
            [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)],
        ]
    )
    before, after = st.lists(transforms, max_size=5), st.lists(transforms, max_size=1)
    end = st.sampled_from([v1.CenterCrop((20, 31)), v2.Resize((31, 20)), v1.RandomResizedCrop(24)])
    return st.builds(lambda b, e, c, a: [*b, e, *c[:1], *a, *c[1:]], before, end, conversions, after)


@settings(max_examples=100, suppress_health_check=list(HealthCheck))
@given(chains(), st.integers(1, 50), st.integers(1, 50), st.integers(0, 1000), st.sampled_from(["RGB", "L"]))
def test_whatever_is_native_is_exact(
    transforms: list[Any], height: int, width: int, index: int, mode: Mode
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lowered = lower_transform(v1.Compose(transforms), mode=mode)
    event("native" if isinstance(lowered, LoweredTransform) else "refused")
    assume(isinstance(lowered, LoweredTransform))
    assert isinstance(lowered, LoweredTransform)
    image = noise(height, width, index).convert(mode)
    value: Any = image
    step = 0
    reasons = iter([step.reason for step in lowered.op_steps])
    for transform in transforms:
        value = theirs(transform, value, index, step)
        if value is None:
            break
        op = find_op(type(transform))
        if op is not None and issubclass(op, ImageOp) and next(reasons) not in (NO_EFFECT, READ_SO):
            step += len(list(flat([read(transform)])))
    found = native(lowered.ops, carried(image.convert(lowered.mode)), SampleKey(SEED, EPOCH, index))
    event("an error" if value is None else "compared" if found is not None else "left to torchvision")
    if value is None:
        assert found is None
    elif found is not None:
        found = found.getchannel(0) if lowered.channels == 1 else found
        assert torch.equal(look_up(found, lowered.table.values), value)


def test_the_comparison_can_fail() -> None:
    """Other random numbers must show, or the tests above prove nothing."""
    transform, image = v1.RandomCrop(20), noise(40, 40)
    found = native([read(transform)], image, SampleKey(SEED, EPOCH, 0))
    assert found is not None
    assert same(found, theirs(transform, image, 0) or image)
    assert not same(found, theirs(transform, image, 1) or image)


def derived(cls: Any) -> Iterator[Any]:
    for each in cls.__subclasses__():
        yield each
        yield from derived(each)


def test_every_image_op_of_the_table_is_there_and_native_code_has_no_other() -> None:
    known = {*derived(ImageOp), *derived(PillowOp)}
    ops = [op for op in known if op.__module__.startswith("headrace.") and hasattr(op, "native")]
    names = {name for op in ops for name in (op.native, op.torch_native, op.opencv_native) if name}
    assert names == set(ffi.op_names())
    assert {op for op in OPS if issubclass(op, ImageOp)} <= set(ops)


def test_each_class_belongs_to_one_op() -> None:
    classes = [cls for op in OPS for cls in op.matches]
    assert len(classes) == len(set(classes))
    for op in OPS:
        for cls in op.matches:
            assert find_op(cls) is op
            assert find_op(type("Derived", (cls,), {"note": "changes nothing"})) is op
            method = "forward" if issubclass(cls, nn.Module) else "__call__"
            assert find_op(type("Derived", (cls,), {method: getattr(cls, method)})) is None
        assert op.examples or not op.matches


LEVELS = cases(LevelOp)


@pytest.mark.parametrize("name", LEVELS)
def test_level_ops_are_tables_and_show_their_arguments(name: str) -> None:
    transform = made(LEVELS[name])
    cls = find_op(type(transform))
    assert cls is not None
    text = str(cls.read(transform))
    assert text.startswith(f"{type(transform).__name__}(")
    assert "None" not in text
    convert = [] if type(transform).__name__ in ("ToTensor", "PILToTensor", "ToImage") else [v2.ToImage()]
    if type(transform).__name__ == "Normalize":
        convert.append(v2.ToDtype(torch.float32, scale=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not isinstance(build_table([*convert, transform]), str)


def test_a_crop_larger_than_the_image_is_an_error_as_in_torchvision() -> None:
    with pytest.raises(ValueError, match=r"Required crop size \(50, 20\) is larger than input image size"):
        replay(noise(40, 40), [read(v1.RandomCrop((50, 20)))], [(0, 0)])


@pytest.mark.parametrize("api", [v1, v2])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "symmetric"])
def test_negative_padding_cuts_as_torchvision_does(api: Any, mode: str) -> None:
    for padding in ((-3, -1, 0, -2), (-2, -2, -2, -2), (0, -9, 0, 0)):
        image = noise(19, 14, 1)
        size = (19 + padding[1] + padding[3], 14 + padding[0] + padding[2])  # leaves RandomCrop no choice
        for transform in (
            api.Pad(padding, padding_mode=mode),
            api.RandomCrop(size, padding, padding_mode=mode),
        ):
            found = native([read(transform)], image, SampleKey(0, 0, 0))
            assert found is not None
            assert same(found, transform(image))
    mixed = api.Pad((-3, 4, 2, -1), padding_mode=mode)
    assert (refusal([mixed, v1.CenterCrop(8), v1.ToTensor()]) == "") == (mode == "constant")


def test_corners_on_a_line_are_left_to_torchvision() -> None:
    op = read(v2.RandomPerspective(1.0, 1.0))
    image, draw = noise(2, 11, 1), (1.0, 0.0, 0.0, 10.0, 1.0, 6.0, 0.0, 1.0, 0.0)
    assert native_drawn(op, image, draw) is None
    nearly = (1.0, 0.0, 0.0, 10.0, 1.0, 6.0, 1.0, 1.0, 1.0)
    found = native_drawn(op, image, nearly)
    assert found is None or same(Image.fromarray(found), replay(image, [op], [nearly]))


def test_what_torch_leaves_of_a_coefficient_of_zero_never_changes_a_pixel() -> None:
    op = read(v2.RandomPerspective(1.0, 1.0))
    corners = (1.0, 2.0, 0.0, 9.0, 0.0, 9.0, 2.0, 2.0, 2.0)  # a shift and a scale: five coefficients are 0
    rows = [
        [141, 137, 136, 132, 131, 130, 132, 137, 125, 129],
        [
            132,
            123,
            121,
            117,
            123,
            138,
            141,
            127,
            134,
            137,
        ],  # 136.5 comes of the last, or nearly
        [126, 139, 134, 128, 138, 131, 120, 146, 115, 136],
    ]
    image = Image.fromarray(np.stack([np.array(rows, np.uint8)] * 3, -1))
    found = native_drawn(op, image, corners)
    assert found is None or same(Image.fromarray(found), replay(image, [op], [corners]))


def test_steps_and_draws_must_match() -> None:
    with pytest.raises(ValueError, match="1 steps and 0 draws"):
        replay(noise(4, 4), [read(v1.CenterCrop(2))], [])
