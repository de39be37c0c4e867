"""Torchvision's transforms on deferred images: the values, types and random numbers that others give."""

from __future__ import annotations

import io
import random
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import _functional_pil, v2
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms.v2 import functional as F2  # noqa: N812

from headrace.transforms import OPS
from headrace.transforms.op import ImageOp
from support.deferred_images import comparable, is_deferred, with_recording
from support.jpegs import jpeg
from support.sampling import one_in

FILES = [jpeg(np.random.default_rng(n), kind, 53, 41) for n, kind in enumerate(("4:2:0", "4:4:4", "gray"))]
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def opened(file: int) -> Image.Image:
    return Image.open(io.BytesIO(FILES[file])).convert("RGB")


def result(transform: Callable[[Any], Any], seed: int) -> Any:
    """What a transform gives, and the next number of each generator; or its error."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            value = transform(opened(seed % len(FILES)))
        except Exception as error:
            return type(error), str(error)
    return value, torch.rand(1).item(), np.random.random(), random.random()


def check(transform: Callable[[Any], Any], seeds: int = 6) -> int:
    """Compares a transform with itself; gives how many of its results were recorded, or made natively."""
    theirs = [result(transform, seed) for seed in range(seeds)]
    ours, recorded = with_recording(lambda: [result(transform, seed) for seed in range(seeds)])
    for mine, other in zip(ours, theirs, strict=True):
        recorded += is_deferred(mine[0])
        assert comparable(mine) == comparable(other)
    return recorded


EXAMPLES = {
    f"{'v2' if '.v2.' in cls.__module__ else 'v1'}.{cls.__name__} {number}": (cls, example)
    for op in OPS
    if issubclass(op, ImageOp)
    for cls in op.matches
    for number, example in enumerate((*op.examples, *(op.v2_examples if ".v2." in cls.__module__ else ())))
}


@pytest.mark.parametrize("name", one_in(3, EXAMPLES))
def test_every_known_transform_gives_what_it_gives_without_recording(name: str) -> None:
    cls, arguments = EXAMPLES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transform = cls(**arguments)
    recorded = check(v1.Compose([v1.Resize((48, 50)), transform]), seeds=4)
    fails = isinstance(result(transform, 0)[0], type)
    # v2.CenterCrop pads by a function that nobody else can reach, AugMix works on tensors, crops come in a
    # tuple, and negative padding is a crop of pixels.
    others = (
        "v2.CenterCrop 1",
        "v2.CenterCrop 3",
        "v1.Grayscale 1",
        "v2.Grayscale 1",
        *(f"{api}.{case}" for api in ("v1", "v2") for case in ("Pad 6", "RandomCrop 10", "RandomCrop 11")),
    )
    unrecorded = name in others or any(each in name for each in ("AugMix", "TenCrop", "FiveCrop"))
    assert recorded or fails or unrecorded


END = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
END_V2 = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


class OwnJitter(v1.ColorJitter):
    """A subclass, as people write them."""

    def forward(self, img: Any) -> Any:
        return super().forward(img) if random.random() < 0.7 else ImageOps.invert(img)


class OwnPreset:
    def __init__(self) -> None:
        self.steps = v1.Compose([v1.RandomResizedCrop(20), OwnJitter(0.4, 0.4, 0.4, 0.1), *END])

    def __call__(self, image: Image.Image) -> Any:
        return self.steps(image)


class Turning(torch.nn.Module):
    """Turns what comes out of the transform it is mixed into."""

    def __call__(self, image: Any) -> Any:
        return super().__call__(image).rotate(90)


class TurnedCrop(v1.RandomResizedCrop, Turning):
    """A crop that is called through the other class's `__call__`."""


class TurnedJitter(v1.ColorJitter, Turning):
    """The same of a jitter."""


def own_blur(image: Image.Image) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius=float(np.random.uniform(0.1, 2))))


def by_functions(image: Image.Image) -> Any:
    image = F.adjust_saturation(F.hflip(image), random.uniform(0, 2))
    return F.adjust_hue(F.pad(image, 3, fill=9), 0.123456789)


def by_functions_of_v2(image: Image.Image) -> Any:
    image = F2.permute_channels(F2.gaussian_blur(image, [5, 3], [1.37]), [2, 0, 1])
    return F2.rotate(image, 12.5, expand=True)


def by_pillow(image: Image.Image) -> Any:
    image = ImageOps.posterize(ImageOps.solarize(ImageOps.exif_transpose(image), 99), 5)
    image = image.rotate(random.uniform(-40, 40), Image.Resampling.BICUBIC, fillcolor=(1, 2, 3)).rotate(90)
    image = image.transform((33, 21), Image.Transform.AFFINE, (1, 0.2, -3, 0.1, 1.1, 2.5), 2)
    return image.resize((19, 23), Image.Resampling.LANCZOS).crop((1, 2, 17, 20))


RECORDED: dict[str, Any] = {
    "a crop": v1.Compose([v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), *END]),
    "a crop, v2": v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), *END_V2]),
    "colors": v1.Compose([v1.RandomResizedCrop(24), v1.ColorJitter(0.4, 0.4, 0.4, 0.1), *END]),
    "AugMix": v1.Compose([v1.RandomResizedCrop(24), v1.AugMix(), *END]),
    "RandomErasing": v1.Compose([v1.Resize((24, 24)), *END, v1.RandomErasing(0.8, value="random")]),
    "RandomErasing in place": v1.Compose([v1.Resize((24, 24)), *END, v1.RandomErasing(0.8, inplace=True)]),
    "RandomErasing, v2": v2.Compose([v2.Resize((24, 24)), *END_V2, v2.RandomErasing(0.8, value=[1, 2, 3])]),
    "normalized in place": v1.Compose([v1.Resize((24, 24)), v1.ToTensor(), v1.Normalize(MEAN, STD, True)]),
    "float16": v1.Compose([v1.Resize((24, 24)), v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)]),
    "a pure tensor": v2.Compose([v2.Resize((24, 24)), *END_V2, v2.ToPureTensor()]),
    "a subclass in a class": OwnPreset(),
    "subclasses with another __call__": v1.Compose([TurnedCrop(20), TurnedJitter(0.4), v1.ToTensor()]),
    "a blur of Pillow's": v1.Compose([v1.RandomCrop(30), v1.Lambda(own_blur), *END]),
    "functions": by_functions,
    "functions of v2": by_functions_of_v2,
    "Pillow's methods": by_pillow,
}


@pytest.mark.parametrize("name", RECORDED)
def test_whole_pipelines_are_recorded_and_give_the_same(name: str) -> None:
    assert check(RECORDED[name]) == 6


def to_numpy(image: Image.Image) -> Any:
    return torch.from_numpy(np.asarray(F.adjust_contrast(image, 0.3)).copy())


NOT_RECORDED: dict[str, Any] = {
    "a tensor's own resize": v2.Compose([v2.ToImage(), v2.Resize((20, 20)), v2.ToDtype(torch.float32)]),
    "one channel": v1.Compose([v1.Grayscale(), v1.ToTensor()]),
    "a hue out of range": lambda image: F.adjust_hue(image, 0.7),
    "a factor that is negative": lambda image: F.adjust_brightness(image, -1.0),
    "a blur that reaches too far": v1.GaussianBlur(201),
    "a padding that is negative": lambda image: F.pad(image, [-3, 2], padding_mode="edge"),
    "a matrix that isn't one": lambda image: image.transform((9, 9), Image.Transform.AFFINE, "nonsense"),
    "NumPy": to_numpy,
}


@pytest.mark.parametrize("name", NOT_RECORDED)
def test_what_is_not_recorded_gives_the_same_value_or_error(name: str) -> None:
    assert not check(NOT_RECORDED[name])


@pytest.mark.parametrize("factor", [0, 1, 1.0, 0.1, 1 / 3, 1.9999, 17.123456789, 1e4])
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "sharpness"])
def test_factors_of_any_precision_give_pillows_pixels(name: str, factor: float) -> None:
    assert check(lambda image: getattr(F, f"adjust_{name}")(image, factor))


@pytest.mark.parametrize("radius", [0, 0.1, 0.5, 1, 1.7, (0.3, 4), (2, 0), 11.25])
def test_blurs_of_any_radius_give_pillows_pixels(radius: Any) -> None:
    assert check(lambda image: image.filter(ImageFilter.GaussianBlur(radius)))


def test_warps_with_random_coefficients_give_pillows_pixels() -> None:
    def warped(image: Image.Image) -> Any:
        filter = random.choice(
            [Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC]
        )
        if random.random() < 0.5:
            method, spread = Image.Transform.AFFINE, [1.0, 1.0, 30.0, 1.0, 1.0, 30.0]
        else:
            method, spread = Image.Transform.PERSPECTIVE, [1, 1, 30, 1, 1, 30, 0.05, 0.05]
        data = [random.uniform(-2, 2) * scale if random.random() < 0.8 else 0 for scale in spread]
        size = random.randint(1, 70), random.randint(1, 70)
        return image.transform(size, method, data, filter, fillcolor=random.choice([None, (9, 8, 255)]))

    assert check(warped, seeds=150) == 150


def test_a_fill_or_dtype_for_a_class_of_images_is_found() -> None:
    fill = {Image.Image: 7, "others": 0}
    dtype = {tv_tensors.Image: torch.float32, "others": None}
    chain = [v2.Pad(4, fill=fill), v2.ToImage(), v2.ToDtype(dtype, scale=True), v2.Normalize(MEAN, STD)]
    check(v2.Compose(chain))

    def classes(image: Image.Image) -> Any:
        tensor, named = F.to_tensor(image), F2.to_image(image)
        by_class = {Image.Image: 1, torch.Tensor: 2, tv_tensors.Image: 3, Image.Exif: 4}
        plain = Image.new("RGB", (1, 1))
        found = [by_class.get(type(each)) for each in (image, tensor, named, plain)]
        return [*found, type(plain) is Image.Image, isinstance(image, Image.Image)]

    check(classes)


def test_later_changes_of_an_image_do_not_reach_the_tensor_made_of_it() -> None:
    def changed(image: Image.Image) -> Any:
        tensor, plain = F.to_tensor(image), Image.new("RGB", (4, 4), (1, 2, 3))
        other = F.to_tensor(plain)
        image.paste(0, (0, 0, 9, 9))
        plain.paste(0, (0, 0, 3, 3))
        return [tensor, image, other, plain]

    check(changed)


def test_a_hue_of_a_gray_image_gives_the_image_itself() -> None:
    def itself(image: Image.Image) -> Any:
        gray = image.convert("L")
        return F.adjust_hue(gray, 0.3) is gray

    check(itself)


def test_recording_ends_where_it_is_stopped() -> None:
    holders = [v1.functional, _functional_pil, v1.Compose, v2.Compose, v1.GaussianBlur, v1.ToTensor]
    before = [dict(vars(each)) for each in holders]
    during, _ = with_recording(lambda: [dict(vars(each)) for each in holders])
    assert [dict(vars(each)) for each in holders] == before
    changed = [now == then for now, then in zip(during, before, strict=True)]
    assert changed == [True, False, False, False, False, True]


CROP_ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"scale": (0.2, 1.0), "interpolation": v1.InterpolationMode.BICUBIC},
    {"scale": [1, 1], "ratio": [1, 1]},
    {"scale": (0.5, 3.0), "ratio": (0.2, 5.0)},  # often fits at a later try
    {"scale": (2.0, 3.0)},  # never fits
    {"scale": (2.0, 3.0), "ratio": (0.1, 0.2)},
    {"scale": (2.0, 3.0), "ratio": (9.0, 11.0)},
    {"scale": (0.0, 1e-9)},
    {"scale": (torch.tensor(0.3), np.float32(0.9)), "ratio": (np.float64(0.7), 1.4)},
    {"scale": (0.1, 0.5, 0.9)},
    {"scale": (0.1, 0.5, 0.9), "ratio": (1.0,)},
    {"scale": (1.0, 0.5)},
    {"scale": (-1.0, -0.5)},
    {"ratio": (-1.0, 1.0)},
    {"antialias": False},
    {"antialias": None, "size": (8, 5)},
    {"size": 8},
    {"size": [9, 0]},
    {"interpolation": v1.InterpolationMode.NEAREST_EXACT},
    {"interpolation": "bilinear"},
]


@pytest.mark.parametrize("size", [(53, 41), (1, 1), (2, 90), (400, 3)])
def test_a_random_crop_is_the_one_that_torchvision_draws(
    monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    rng = np.random.default_rng(5)
    monkeypatch.setattr(sys.modules[__name__], "FILES", [jpeg(rng, "4:2:0", *size)])
    for arguments in CROP_ARGUMENTS:
        transform = v1.RandomResizedCrop(8)
        vars(transform).update(arguments)
        check(transform, seeds=25)


def _hooked(transform: Any) -> Any:
    transform.register_forward_hook(lambda _, __, image: image.rotate(90))
    return transform


def _with_own_params(transform: Any) -> Any:
    params = transform.get_params
    transform.get_params = lambda *arguments: params(*arguments)
    return transform


@pytest.mark.parametrize("change", [_hooked, _with_own_params, lambda transform: transform.eval()])
def test_changed_transforms_do_what_they_do_without_recording(change: Callable[[Any], Any]) -> None:
    check(change(v1.RandomResizedCrop(8)))
    check(change(v1.ColorJitter(0.4, 0.4, 0.4, 0.1)))
    check(change(v1.ColorJitter((0.3, 0.5), 0, 0, 0.5)))
    check(change(v1.GaussianBlur(5)))
    check(change(type("Own", (v1.GaussianBlur,), {})((3, 7), 0.7)))


def test_functions_that_transforms_call_may_be_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "gaussian_blur", lambda image, *_: image.rotate(90))
    check(v1.GaussianBlur(5))
    monkeypatch.setattr(F, "resized_crop", lambda image, *box, antialias: image.crop((*box[:2], 40, 40)))
    monkeypatch.setattr(F, "adjust_hue", lambda image, factor: F.pad(image, int(100 * abs(factor))))
    check(v1.RandomResizedCrop(8))
    check(v1.ColorJitter(0.4, 0.4, 0.4, 0.1))
    monkeypatch.setattr(v1.RandomResizedCrop, "get_params", staticmethod(lambda *_: (1, 2, 9, 9)))
    check(v1.RandomResizedCrop(8))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_crops_follow_torchs_default_dtype(dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    try:
        check(v1.RandomResizedCrop(8), seeds=20)
    finally:
        torch.set_default_dtype(torch.float32)


def test_crops_follow_torchs_default_device() -> None:
    with torch.device("meta"):
        check(lambda image: v1.RandomResizedCrop(8)(image))
