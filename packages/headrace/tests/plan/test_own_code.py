"""Code of the user's own: what its bytecode proves is native, and nothing else is."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps
from torch import nn
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import v2

import headrace
from headrace.transforms import find_op
from headrace.transforms.own_code import (
    computes,
    conversion_of,
    hands_on,
    reading_mode_of,
    turns_upright,
    wrapped_transform,
)
from support.jpegs import image_folder
from support.lowering import lowered, refusal

INSIDE = v1.Compose([v1.CenterCrop(8), v1.ToTensor()])


class Preset:
    def __init__(self, transforms: Any = INSIDE) -> None:
        self.transforms = transforms

    def __call__(self, img: Any) -> Any:
        """Documented."""
        return self.transforms(img)


class InTwoSteps(Preset):
    def __call__(self, img: Any) -> Any:
        out = self.transforms(img)
        return out  # noqa: RET504


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(v2.CenterCrop(8), v2.PILToTensor())

    def forward(self, img: Any) -> Any:
        return self.inner(img)


class WithTarget(Preset):
    def __call__(self, img: Any, target: Any = None) -> Any:  # noqa: ARG002
        return self.transforms(img)


class Counting(Preset):
    def __call__(self, img: Any) -> Any:
        self.calls = 1
        return self.transforms(img)


class Property:
    @property
    def transforms(self) -> Any:
        return random.choice([v1.CenterCrop(8), v1.CenterCrop(9)])

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


class Method:
    def transforms(self, img: Any) -> Any:
        return img

    def __call__(self, img: Any) -> Any:
        return self.transforms(img)


def hooked() -> Any:
    module = Module()
    module.register_forward_hook(lambda *_: None)
    return module


def negated() -> Any:
    module = Module()
    module.forward = lambda img: -module.inner(img)  # type: ignore[method-assign]
    return module


class OwnImpl(Module):
    def _call_impl(self, *args: Any) -> Any:
        return -super()._call_impl(*args)


@pytest.mark.parametrize("make", [Preset, InTwoSteps, Module, type("Derived", (Preset,), {})])
def test_a_class_around_a_transform_is_that_transform(make: Callable[[], Any], tmp_path: Path) -> None:
    dataset = datasets.ImageFolder(str(image_folder(tmp_path, 6)), make())
    loader = headrace.DataLoader(dataset, 4, num_workers=2)
    assert "python" not in loader.explain()
    for (ours, _), (theirs, _) in zip(loader, torch.utils.data.DataLoader(dataset, 4), strict=True):
        assert torch.equal(ours, theirs)


OTHERS = [
    *(WithTarget(), Counting(), Property(), Method(), hooked(), v1.CenterCrop(8)),
    *(negated(), OwnImpl()),
]


@pytest.mark.parametrize("transform", OTHERS, ids=lambda each: type(each).__name__)
def test_a_class_that_does_anything_else_is_not(transform: Any) -> None:
    assert wrapped_transform(transform) is None


def test_a_class_around_a_transform_is_not_that_where_all_modules_have_hooks() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        assert wrapped_transform(Module()) is None
    finally:
        handle.remove()
    assert wrapped_transform(Module()) is not None


class Renamed(v1.RandomCrop):
    """Arguments of its own, and a method that nothing calls."""

    sizes = (8, 9)

    def __init__(self, edge: int) -> None:
        super().__init__((edge, edge))

    def __repr__(self) -> str:
        return "Renamed"

    def area(self) -> int:
        return 64


class OwnParams(v1.RandomCrop):
    @staticmethod
    def get_params(img: Any, output_size: Any) -> Any:  # noqa: ARG004
        return 0, 0, 8, 8


class OwnSize(v1.RandomCrop):
    @property
    def size(self) -> Any:
        return random.choice([(8, 8), (9, 9)])

    @size.setter
    def size(self, size: Any) -> None: ...


class OwnCall(v2.CenterCrop):
    def __call__(self, *args: Any) -> Any:
        return super().__call__(*args)


class OwnMeta(type):
    def __call__(cls, *args: Any) -> Any:
        return super().__call__(*args)


class Mixin:
    def forward(self, img: Any) -> Any:
        return img


def test_a_subclass_that_changes_nothing_is_its_base() -> None:
    assert str(lowered(v1.Compose([Renamed(8), v1.ToTensor()])).ops[0]) == "RandomCrop(8×8)"
    held = v1.RandomApply([Renamed(8)])
    assert not refusal([held, v1.CenterCrop(8), v1.ToTensor()])


def test_a_subclass_that_changes_anything_is_unknown() -> None:
    for derived in (
        *(OwnParams, OwnSize, OwnCall),
        type("Mixed", (Mixin, v1.CenterCrop), {}),
        type("Behind", (v1.CenterCrop, Mixin), {}),
        OwnMeta("Meta", (v1.CenterCrop,), {}),
        type("Slots", (v1.CenterCrop,), {"__getattr__": lambda self, name: 1}),
    ):
        assert find_op(derived) is None, derived


def identity(x: Any) -> Any:
    """Documented."""
    return x


def to_rgb(image: Image.Image) -> Image.Image:
    image = image.convert("RGB")
    return image  # noqa: RET504


def scaled(values: torch.Tensor) -> torch.Tensor:
    values = values * 2.0
    values -= 1
    return values


FACTOR = 2.0


def test_functions_that_read_images_are_known_by_the_mode_they_convert_to() -> None:
    assert reading_mode_of(lambda x: Image.open(x).convert("L")) == "L"
    assert reading_mode_of(datasets.folder.pil_loader) == "RGB"
    for function in (
        *(Image.open, lambda x: Image.open(x), lambda x: Image.open(x).convert("LA")),
        *(lambda x: Image.open(x, "r").convert("L"), lambda x, y=1: Image.open(x).convert("L")),
        *(lambda x: Image.open(x).convert("L").rotate(3), lambda x: datasets.open(x).convert("L")),
    ):
        assert reading_mode_of(function) is None


def test_another_object_of_a_known_name_is_not_known() -> None:
    namespace: dict[str, Any] = {"Image": SimpleNamespace(open=Image.open)}
    exec("def load(path):\n    return Image.open(path).convert('L')", namespace)
    assert reading_mode_of(namespace["load"]) is None
    namespace["Image"] = Image
    assert reading_mode_of(namespace["load"]) == "L"
    lines = ["from PIL import Image", "def load(path):"]
    lines += ["    with open(path, 'rb') as f:", "        return Image.open(f).convert('L')"]
    exec("\n".join(lines), namespace)
    assert reading_mode_of(namespace["load"]) == "L"
    exec("\n".join(lines[1:]), namespace)  # as in a notebook, where another cell has imported Image
    assert reading_mode_of(namespace["load"]) == "L"
    namespace["open"] = len
    assert reading_mode_of(namespace["load"]) is None


def test_functions_are_known_by_what_they_do() -> None:
    for same in (identity, lambda image: image):
        assert hands_on(same)
    for converts in (to_rgb, lambda x: x.convert("RGB")):
        assert conversion_of(converts) == "RGB"
    assert conversion_of(lambda x: x.convert("L")) == "L"
    for turns in (ImageOps.exif_transpose, lambda x: ImageOps.exif_transpose(x)):
        assert turns_upright(turns)
    for arithmetic in (
        *(scaled, lambda x: x * 2 - 1, lambda t: (t - 0.5) / 0.5, lambda x: -x),
        *(lambda x: x.add(x).add_(-1), lambda x: x.clamp(0.1, 0.9)),
    ):
        assert computes(arithmetic)


def test_functions_that_do_anything_else_are_not_known() -> None:
    factor = 3.0
    for function in (
        *(lambda x, y=0: x, lambda *x: x, lambda x: (x,), partial(identity), identity.__call__, len),  # type: ignore[operator]
        *(
            lambda x: x.convert("LA"),
            lambda x: x.convert(mode="RGB"),
            lambda x: x.convert("L", "RGB"),
            lambda x: ImageOps.exif_transpose(x, in_place=True),
            lambda x: ImageOps.invert(x),
            lambda x: x.convert("RGB").copy(),
        ),
        *(lambda x: x + torch.rand(1), lambda x: x * FACTOR, lambda x: x * factor, lambda x: x**2),
        *(lambda x: x @ x, lambda x: x.mean(), lambda x: x if x > 1 else -x, lambda x: x.normal_()),
        *(lambda x: x.add(1, alpha=2), lambda x: [x], lambda x: x * "a"),
    ):
        assert not hands_on(function)
        assert conversion_of(function) is None
        assert not turns_upright(function)
        assert reading_mode_of(function) is None
        assert not computes(function)


@pytest.mark.parametrize("wrap", [v1.Lambda, v2.Lambda, lambda function: function])
def test_functions_in_a_pipeline_run_natively(wrap: Any, tmp_path: Path) -> None:
    steps = [wrap(lambda image: image.convert("RGB")), v1.CenterCrop(8), wrap(identity), v1.ToTensor()]
    dataset = datasets.ImageFolder(str(image_folder(tmp_path, 6)), v1.Compose([*steps, wrap(scaled)]))
    loader = headrace.DataLoader(dataset, 4, num_workers=2)
    assert "python" not in loader.explain()
    for (ours, _), (theirs, _) in zip(loader, torch.utils.data.DataLoader(dataset, 4), strict=True):
        assert torch.equal(ours, theirs)
    held = v1.RandomApply([wrap(identity), v1.CenterCrop(8)])
    assert not refusal([held, v1.CenterCrop(8), v1.ToTensor()])


def test_what_torch_raises_for_a_function_is_not_hidden() -> None:
    for steps in (
        [v1.CenterCrop(8), v1.ToTensor(), v1.Lambda(to_rgb)],  # a tensor has no convert
        [v1.CenterCrop(8), v1.Lambda(scaled), v1.ToTensor()],  # an image has no arithmetic
        [v1.RandomApply([v1.Lambda(to_rgb)]), v1.CenterCrop(8), v1.ToTensor()],
    ):
        assert refusal(steps)
