"""RandomApply, RandomChoice and RandomOrder in a plan: what they may hold, and the sizes that they leave."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

from headrace.transforms import find_op
from headrace.transforms.op import UNKNOWN, Extent, ImageOp
from support.lowering import refusal

FLIP = v1.RandomHorizontalFlip()


def read(transform: Any) -> ImageOp:
    kind = find_op(type(transform))
    assert kind is not None
    op = kind.read(transform)
    assert isinstance(op, ImageOp)
    return op


def reason(held: Any) -> str:
    """Why a RandomApply that holds `held` stays Python."""
    return refusal([v1.CenterCrop(8), v1.RandomApply([FLIP, held]), v1.ToTensor()])


def hooked() -> nn.Module:
    flip = v1.RandomVerticalFlip()
    flip.register_forward_hook(lambda *_: None)
    return flip


class OwnFlip(v1.RandomHorizontalFlip):
    """A subclass with a forward of its own."""

    def forward(self, img: Any) -> Any:
        return super().forward(img)


REFUSED = {
    "holds ElasticTransform, which has no native form": v2.ElasticTransform(),
    "holds OwnFlip, which has no native form": OwnFlip(),
    "holds RandomOrder: holds OwnFlip": v1.RandomOrder([OwnFlip()]),
    "holds ToTensor, which native code runs at the end only": v1.ToTensor(),
    "holds RandomVerticalFlip: has forward hooks": hooked(),
    "holds Compose: holds RandomVerticalFlip: has forward hooks": v1.Compose([FLIP, hooked()]),
    "holds RandomChoice: p must have a weight for each": v1.RandomChoice([FLIP, FLIP], p=[1.0]),
    "holds RandomChoice: p=[-1.0, 2.0] must be finite": v1.RandomChoice([FLIP, FLIP], p=[-1.0, 2.0]),
    "holds RandomApply: p (nan) must be 0 to 1": v1.RandomApply([FLIP], p=float("nan")),
    "holds more than 32 transforms": v1.Compose([FLIP] * 40),
    "holds RandomCrop: padding of 3 values": v1.RandomCrop(8, padding=[1, 2, 3]),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_container_of_something_without_a_native_form_has_none(why: str) -> None:
    assert why in reason(REFUSED[why])


def test_a_container_that_holds_itself_stays_python() -> None:
    endless = v1.RandomOrder([FLIP])
    endless.transforms.append(endless)
    assert "is nested more than 6 deep" in reason(endless)


def test_whatever_a_container_does_the_size_is_known_where_it_must_be() -> None:
    whole = Extent(40, 40, exact=True)
    crop = v1.RandomCrop(20)
    assert read(v1.RandomApply([FLIP])).extent(whole) == whole
    assert read(v1.RandomApply([crop])).extent(whole) == Extent(20, 20, exact=False)
    assert read(v1.RandomChoice([crop, v1.CenterCrop(20)])).extent(UNKNOWN) == Extent(20, 20, exact=True)
    assert read(v1.RandomOrder([FLIP, crop])).extent(whole) == UNKNOWN
    assert read(v1.RandomOrder([FLIP, v1.ColorJitter(0.4)])).extent(whole) == whole


def test_a_crop_that_cannot_be_cut_inside_of_a_container_stays_python() -> None:
    assert "RandomCrop(50×50) cuts 50×50 from 8×8, for which torchvision raises" in reason(v1.RandomCrop(50))


def test_geometry_inside_of_a_container_may_follow_the_conversion_and_color_may_not() -> None:
    end = [v1.ToTensor(), v1.RandomApply([FLIP])]
    assert not refusal([v1.CenterCrop(8), *end])
    end = [v1.ToTensor(), v1.RandomApply([v1.ColorJitter(0.5)])]
    assert refusal([v1.CenterCrop(8), *end])
