"""Whole transforms: lowered completely, or refused with a reason for every step that is to blame."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import ImageFilter
from torchvision import datasets, models
from torchvision import transforms as v1
from torchvision.transforms import v2

import headrace
from headrace.plan.transform import NO_NATIVE_FORM, LoweredTransform, lower_transform
from headrace.transforms.chance import VerticalFlip
from headrace.transforms.crops import CenterCrop, RandomCrop
from headrace.transforms.op import NO_EFFECT
from support.jpegs import image_folder
from support.lowering import lowered, refusals

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
CENTER = CenterCrop(8, 8)


def test_a_transform_alone_and_nested_ones() -> None:
    nested = v1.Compose([v2.Compose([v1.CenterCrop(8)]), v1.Compose([v2.Compose([v1.ToTensor()])])])
    assert lowered(nested).ops == (CENTER,)
    assert [step.text for step in lowered(nested).steps] == ["CenterCrop(8×8)", "ToTensor()"]
    assert refusals(v1.ToTensor()).keys() == {"output"}


def test_geometry_after_the_conversion() -> None:
    transform = v1.Compose(
        [v1.CenterCrop(8), v1.ToTensor(), v1.RandomVerticalFlip(), v1.Normalize(MEAN, STD)]
    )
    assert lowered(transform).ops == (CENTER, VerticalFlip(0.5))
    transform.transforms[2] = v2.Resize(8)
    assert lowered(transform).ops == (CENTER,)  # it is 8×8 already
    transform.transforms[2] = v2.Resize(9)
    assert "other than uint8 RGB" in refusals(transform)["Resize(shorter edge 9, bilinear)"]


@pytest.mark.parametrize("step", [v1.Resize((24, 20)), v1.CenterCrop((24, 20)), v1.RandomCrop((24, 20))])
def test_what_changes_nothing_is_left_out(step: Any) -> None:
    result = lowered(v1.Compose([v1.RandomResizedCrop((24, 20)), step, v1.ToTensor()]))
    assert len(result.ops) == 1
    assert result.steps[1].reason == NO_EFFECT


def test_padding_that_is_never_needed_is_left_out() -> None:
    for crop, expected in (
        (v1.RandomCrop((256, 200), pad_if_needed=True), RandomCrop(256, 200)),
        (v1.RandomCrop((264, 200), 4, pad_if_needed=True), RandomCrop(264, 200, (4, 4, 4, 4), False)),
        (v1.RandomCrop((257, 200), pad_if_needed=True), RandomCrop(257, 200, None, True)),
        (v1.RandomCrop(9, 0), RandomCrop(9, 9)),
    ):
        assert lowered(v1.Compose([v1.Resize(256), crop, v1.ToTensor()])).ops[1] == expected


def test_a_crop_that_torchvision_raises_an_error_for_stays_python() -> None:
    for padding, size in ((0, "24×24"), (4, "32×32")):
        steps = [v1.RandomResizedCrop(24), v1.RandomCrop(33, padding), v1.ToTensor()]
        expected = f"cuts 33×33 from {size}, for which torchvision raises an error"
        assert expected in refusals(v1.Compose(steps)).values()


@pytest.mark.parametrize(
    ("steps", "size"),
    [
        ([v1.CenterCrop((100, 50)), v1.Resize(20)], (40, 20)),
        ([v1.CenterCrop((100, 50)), v1.Resize(20, max_size=30)], (30, 15)),
        ([v1.Resize(256), v1.CenterCrop((7, 300))], (7, 300)),
    ],
)
def test_the_size_after_steps(steps: list[Any], size: tuple[int, int]) -> None:
    result = lowered(v1.Compose([*steps, v1.ToTensor()]))
    assert (result.height, result.width) == size


def test_the_size_must_be_known() -> None:
    for steps in ([v1.Resize(256)], [v1.Resize(256, max_size=300)], [v1.RandomVerticalFlip()]):
        assert refusals(v1.Compose([*steps, v1.ToTensor()])) == {
            "output": "size varies with the image: give Resize both sizes, or crop at the end"
        }


def test_the_preset_of_pretrained_weights_is_taken_apart(tmp_path: Path) -> None:
    preset = models.ResNet18_Weights.DEFAULT.transforms(crop_size=40, resize_size=48)
    dataset = datasets.ImageFolder(str(image_folder(tmp_path, 6)), preset)
    loader = headrace.DataLoader(dataset, 4, num_workers=2)
    assert "python" not in loader.explain()
    expected = torch.utils.data.DataLoader(dataset, 4)
    for (ours, _), (theirs, _) in zip(loader, expected, strict=True):
        assert torch.equal(ours, theirs)
    preset.register_forward_hook(lambda *_: None)
    assert "has forward hooks" in headrace.DataLoader(dataset, 4).explain()


class MyCrop(v1.CenterCrop):
    """A subclass with a forward of its own."""

    def forward(self, img: Any) -> Any:
        return super().forward(img)


def blur(image: Any) -> Any:
    """A function of the user's."""
    return image.filter(ImageFilter.BoxBlur(1))


def test_all_that_isnt_known_is_named_with_its_place() -> None:
    transforms = [
        v2.ElasticTransform(),
        MyCrop(8),
        blur,
        v1.CenterCrop(8),
        lambda image: image.copy(),
        v1.ToTensor(),
    ]
    result = lower_transform(v1.Compose(transforms))
    assert not isinstance(result, LoweredTransform)
    notes = [(step.text, step.reason, step.refused) for step in result]
    assert notes[0] == ("ElasticTransform", NO_NATIVE_FORM, True)
    assert notes[1][0].startswith("MyCrop (")
    assert notes[1][1] == "a subclass of CenterCrop, which may do anything"
    line = blur.__code__.co_firstlineno
    assert notes[2][0].startswith("blur (")
    assert notes[2][0].endswith(f"test_transform.py:{line})")
    assert notes[3] == ("CenterCrop(8×8)", "", False)
    assert "<lambda> (" in notes[4][0]
    assert notes[5] == ("ToTensor()", "", False)


def hooked() -> Any:
    crop = v1.CenterCrop(8)
    crop.register_forward_hook(lambda *_: None)
    return crop


def patched() -> Any:
    crop = v2.CenterCrop(8)
    crop.transform = lambda inpt, _params: inpt
    return crop


def compiled() -> Any:
    crop = v1.CenterCrop(8)
    crop._compiled_call_impl = lambda image: image
    return crop


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (hooked, "has forward hooks"),
        (patched, "transform replaced on this object"),
        (compiled, "is compiled"),
    ],
)
def test_an_object_that_was_tampered_with_isnt_its_class(make: Any, reason: str) -> None:
    found = refusals(v1.Compose([make(), v1.ToTensor()]))
    assert found["CenterCrop"] == reason


@pytest.mark.parametrize(("cls", "method"), [(v1.CenterCrop, "forward"), (v2.CenterCrop, "transform")])
def test_a_class_that_was_tampered_with(cls: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cls, method, lambda _self, image, *_: image)
    found = refusals(v1.Compose([cls(8), v1.ToTensor()]))
    assert found["CenterCrop"] == f"{method} replaced on its class"


@pytest.mark.parametrize("cls", [v1.CenterCrop, v1.ToTensor])
def test_a_class_that_was_tampered_with_by_a_function_that_wraps_the_old_one(
    cls: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "forward" if cls is v1.CenterCrop else "__call__"
    old = getattr(cls, method)

    @functools.wraps(old)
    def patched(self: Any, image: Any) -> Any:
        return old(self, image)

    for new in (patched, torch.no_grad()(patched)):
        monkeypatch.setattr(cls, method, new)
        found = refusals(v1.Compose([v1.CenterCrop(8), v1.ToTensor()]))
        assert found[cls.__name__].startswith(f"{method} replaced on its class")


@pytest.mark.parametrize(
    "register",
    [
        torch.nn.modules.module.register_module_forward_hook,
        torch.nn.modules.module.register_module_forward_pre_hook,
        torch.nn.modules.module.register_module_full_backward_hook,
        torch.nn.modules.module.register_module_full_backward_pre_hook,
    ],
)
def test_hooks_for_all_modules_are_for_transforms_too(register: Any) -> None:
    transform = v1.Compose([v1.CenterCrop(8), v1.ToTensor()])
    handle = register(lambda *_: None)
    try:
        assert refusals(transform)["CenterCrop"].startswith("there are hooks for all modules")
    finally:
        handle.remove()
    lowered(transform)


def with_set(transform: Any, **attributes: Any) -> Any:
    for name, value in attributes.items():
        setattr(transform, name, value)
    return transform


def test_attributes_that_torchvision_ignores_are_ignored() -> None:
    crop = with_set(v1.CenterCrop(8), padding_mode="reflect", fill=9)
    assert lowered(v1.Compose([crop, v1.ToTensor()])).ops == (CENTER,)
    erasing = v1.RandomErasing(value=1)
    expected = lowered(v1.Compose([v1.CenterCrop(8), v1.ToTensor(), erasing])).erase
    erasing.log_aspect_ratio = (0.0, 1.0)
    assert lowered(v1.Compose([v1.CenterCrop(8), v1.ToTensor(), erasing])).erase == expected


class UnreadableError(Exception):
    """Raised where it is read."""


class BadSequence(list[int]):
    def __len__(self) -> int:
        raise UnreadableError("no length")


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        (with_set(v1.RandomChoice([v1.CenterCrop(8)]), p=3), "can't be read: TypeError: "),
        (with_set(v1.CenterCrop(8), size=BadSequence()), "can't be read: UnreadableError: no length"),
        (v1.Compose(3), "can't be read: TypeError: "),
    ],
)
def test_what_reading_a_transform_raises_makes_it_python(transform: Any, reason: str) -> None:
    assert refusals(transform)[type(transform).__name__].startswith(reason)


def test_a_tampered_container() -> None:
    compose = v2.Compose([v1.CenterCrop(8), v1.ToTensor()])
    compose.register_forward_pre_hook(lambda *_: None)
    assert refusals(compose)["Compose"] == "has forward hooks"


def test_a_container_of_itself_ends() -> None:
    compose = v1.Compose([])
    compose.transforms.append(compose)
    assert refusals(compose)["Compose"].startswith("nested more than 32 deep")


def test_planning_draws_nothing() -> None:
    before = torch.get_rng_state()
    lowered(
        v1.Compose([v2.RandomResizedCrop(8), v1.RandomCrop(8, 1), v1.RandomHorizontalFlip(), v1.ToTensor()])
    )
    assert torch.equal(torch.get_rng_state(), before)
