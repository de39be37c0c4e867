"""User code by number: a `__getitem__` and a collate_fn, drawn from what people do to images and tensors.

The same number is the same program, whether images are lazy or not; so must be what comes out.
"""

from __future__ import annotations

import copy
import io
import pickle
import random
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageChops, ImageDraw, ImageEnhance, ImageFilter, ImageOps, ImageStat
from torch import nn
from torch.utils.data import Dataset, default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.io import ImageReadMode, decode_image, decode_jpeg
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms.v2 import functional as F2  # noqa: N812

from headrace.transforms import OPS
from headrace.transforms.op import ImageOp
from support.jpegs import jpeg, picture

SAMPLES = 3  # of a batch, each of another file
Choose = random.Random
Action = Callable[[Any, Choose], Any]


def _files() -> list[bytes]:
    rng = np.random.default_rng(7)
    kinds = ["4:2:0", "4:4:4", "4:2:2", "gray", "4:2:0", "progressive"]
    files = [jpeg(rng, kind, 31 + 7 * n, 52 - 5 * n) for n, kind in enumerate(kinds)]
    kinds = ["RGB PNG", "RGBA PNG", "CMYK JPEG", "P PNG", "LA PNG", "1 PNG", "I;16 PNG", "RGBA WEBP"]
    for mode, kind in map(str.split, kinds):
        file, image = io.BytesIO(), picture(rng, 33, 27)
        image.putalpha(image.getchannel("G"))
        made = image.convert("I").convert(mode) if mode == "I;16" else image.convert(mode)
        made.save(file, kind, lossless=True)
        files.append(file.getvalue())
    turned, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    picture(rng, 40, 24).save(turned, "JPEG", exif=exif, comment=b"a comment")
    return [*files, turned.getvalue(), files[0][: len(files[0]) // 2], files[1][:-2]]


FILES = _files()


# --- images ------------------------------------------------------------------------------------------


_DTYPES = (np.uint8, np.int16, np.float16, np.float32, np.float64, np.int64, bool, ">f4")


def _box(image: Image.Image, choose: Choose) -> tuple[int, int, int, int]:
    left, top = choose.randint(-3, image.width - 1), choose.randint(-3, image.height - 1)
    return left, top, left + choose.randint(1, image.width), top + choose.randint(1, image.height)


def _size(choose: Choose) -> tuple[int, int]:
    return choose.randint(1, 40), choose.randint(1, 40)


def _filter(choose: Choose) -> Image.Resampling:
    return choose.choice(list(Image.Resampling))


def _put(image: Image.Image, choose: Choose) -> Image.Image:
    access: Any = image.load()
    access[choose.randrange(image.width), choose.randrange(image.height)] = image.getpixel((0, 0))
    return image


def _pasted(image: Image.Image, choose: Choose) -> Image.Image:
    image.paste(image.crop((0, 0, 3, 3)), (choose.randrange(5), choose.randrange(5)))
    return image


def _drawn(image: Image.Image, choose: Choose) -> Image.Image:
    ImageDraw.Draw(image).rectangle((1, 1, choose.randint(2, 9), 7), fill=3 if image.mode == "L" else "red")
    return image


def _thumbnail(image: Image.Image, choose: Choose) -> Image.Image:
    image.thumbnail(_size(choose))
    return image


def _noisy(image: Image.Image, choose: Choose) -> Image.Image:
    pixels = np.asarray(image).astype(np.int16)
    return Image.fromarray((pixels + np.random.randint(-8, 9, pixels.shape)).clip(0, 255).astype(np.uint8))


def _saved_again(image: Image.Image, choose: Choose) -> Image.Image:
    file = io.BytesIO()
    image.save(file, choose.choice(["PNG", "JPEG"]))
    return Image.open(file)


def _blended(image: Image.Image, choose: Choose) -> Image.Image:
    other = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return choose.choice([ImageChops.add, ImageChops.lighter, lambda a, b: Image.blend(a, b, 0.3)])(
        image, other
    )


def _merged(image: Image.Image, choose: Choose) -> Image.Image:
    bands = list(image.split())
    choose.shuffle(bands)
    return Image.merge(image.mode, bands)


IMAGE_TO_IMAGE: list[Action] = [
    lambda image, _: image.convert("RGB"),
    lambda image, choose: image.convert(choose.choice(["L", "RGB", "HSV", "YCbCr", "RGBA"])),
    lambda image, choose: image.crop(_box(image, choose)),
    lambda image, choose: image.crop((2, 3, image.width - choose.randint(0, 9), image.height)),
    lambda image, choose: image.resize(_size(choose), _filter(choose)),
    lambda image, choose: image.resize(
        _size(choose), box=(1, 1, 9.5, 8), reducing_gap=choose.choice([None, 2.0])
    ),
    lambda image, choose: image.transpose(choose.choice(list(Image.Transpose))),
    lambda image, choose: image.rotate(choose.choice([0, 90, 180, 33.3]), expand=choose.random() < 0.5),
    lambda image, choose: image.filter(ImageFilter.GaussianBlur(choose.choice((0.5, 2.0, 3.5)))),
    lambda image, choose: image.filter(choose.choice([ImageFilter.FIND_EDGES, ImageFilter.MedianFilter(3)])),
    lambda image, choose: image.point(lambda level: level * choose.choice([1, 2]) // 2),
    lambda image, choose: ImageOps.posterize(image, choose.randint(1, 8)),
    lambda image, _: ImageOps.invert(image),
    lambda image, _: ImageOps.autocontrast(image),
    lambda image, choose: ImageOps.fit(image, _size(choose)),
    lambda image, _: ImageOps.exif_transpose(image),
    lambda image, choose: ImageEnhance.Color(image).enhance(choose.random() * 2),
    lambda image, choose: (copy.copy if choose.random() < 0.5 else copy.deepcopy)(image),
    lambda image, _: pickle.loads(pickle.dumps(image)),
    lambda image, choose: F.adjust_hue(image, choose.random() - 0.5),
    lambda image, choose: F.gaussian_blur(image, choose.choice([3, [5, 3]])),
    lambda image, choose: F.pad(
        image, choose.randint(0, 4), padding_mode=choose.choice(["edge", "constant"])
    ),
    lambda image, choose: F2.rotate(image, choose.random() * 90, expand=choose.random() < 0.5),
    _put,
    _pasted,
    _drawn,
    _thumbnail,
    _noisy,
    _saved_again,
    _blended,
    _merged,
]
IMAGE_TO_VALUE: list[Action] = [
    lambda image, _: (image.size, image.mode, image.format, image.getbands(), dict(image.info)),
    lambda image, _: image.getpixel((0, 0)),
    lambda image, _: (image.getextrema(), image.getbbox(), image.histogram()[:9]),
    lambda image, _: ImageStat.Stat(image).mean,
    lambda image, _: np.asarray(image),
    lambda image, _: np.array(image, np.float32).mean(),
    lambda image, _: (image == image.copy(), image == 3, isinstance(image, Image.Image), bool(image)),
    lambda image, _: hash(image),
    lambda image, _: (type(image) == Image.Image, {Image.Image: 1}.get(type(image))),  # noqa: E721
    lambda image, _: image.tobytes("raw", "BGR")[:9],
    lambda image, _: (image.verify(), image.load() is None, image.size),
    lambda image, _: dict(image.getexif()),
    lambda image, _: (image.close(), image.getpixel((0, 0))),
    lambda image, _: F.to_tensor(image),
    lambda image, _: F2.to_image(image),
    lambda image, _: F.normalize(F.to_tensor(image), [0.5] * 3, [0.2] * 3),
    lambda image, _: torch.as_tensor(np.array(image)),
    lambda image, choose: np.asarray(image, choose.choice(_DTYPES)),
    lambda image, choose: np.array(image, choose.choice(_DTYPES), copy=choose.choice([True, None, False])),
    lambda image, _: torch.from_numpy(np.array(image).transpose(2, 0, 1)),
    lambda image, _: F.pil_to_tensor(image.convert("L")),
]


# --- transforms --------------------------------------------------------------------------------------


def _known() -> list[tuple[Any, dict[str, Any]]]:
    ops = [op for op in OPS if issubclass(op, ImageOp)]
    pairs = [(cls, dict(example)) for op in ops for cls in op.matches for example in op.examples]
    return [(cls, example) for cls, example in pairs if "torchvision" in cls.__module__]


KNOWN = _known()


class OwnCrop(v1.RandomResizedCrop):
    """A subclass that draws for itself."""

    def forward(self, img: Any) -> Any:
        return super().forward(img) if random.random() < 0.7 else F.resize(img, [11, 11])


def _conversion(choose: Choose) -> list[Any]:
    normalize = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    return choose.choice(
        [
            lambda: [v1.ToTensor()],
            lambda: [v1.ToTensor(), v1.Normalize(*normalize, inplace=choose.random() < 0.5)],
            lambda: [v1.ToTensor(), v1.Normalize([0.5], [0.5]), v1.RandomErasing(0.8, value="random")],
            lambda: [v1.PILToTensor(), v1.ConvertImageDtype(choose.choice([torch.float16, torch.float32]))],
            lambda: [v2.ToImage()],
            lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=choose.random() < 0.7)],
            lambda: [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*normalize)],
            lambda: [v2.PILToTensor(), v2.ToDtype(torch.bfloat16, scale=True), v2.ToPureTensor()],
            lambda: [v1.ToTensor(), v1.Lambda(lambda x: x * torch.rand(1)), v1.Normalize(*normalize)],
            lambda: [v1.ToTensor(), v1.Normalize(torch.tensor(normalize[0]), torch.tensor(normalize[1]))],
            lambda: [v1.ToTensor(), v1.Normalize([0.5] * 3, [0.0] * 3)],
            lambda: [v2.ToImage(), v2.Resize((9, 9)), v2.ToDtype(torch.float32, scale=True)],
        ]
    )()


def transform_of(choose: Choose) -> Any:
    """A Compose of known transforms, mostly with a conversion to a tensor at its end."""
    steps: list[Any] = []
    for _ in range(choose.randint(0, 3)):
        cls, arguments = choose.choice(KNOWN)
        step = cls(**copy.deepcopy(arguments))
        steps.append(v1.RandomApply([step], 0.5) if choose.random() < 0.3 else step)
    if choose.random() < 0.6:
        steps.insert(0, choose.choice([v1.RandomResizedCrop(16), OwnCrop(16), v1.Resize((16, 16))]))
    if choose.random() < 0.8:
        steps.append(v1.Resize((12, 14)))
        steps += _conversion(choose)
    compose: Any = choose.choice([v1.Compose, v2.Compose])
    return compose(steps or [v1.RandomHorizontalFlip()])


# --- tensors -----------------------------------------------------------------------------------------


def _changed(change: Callable[[Any], Any]) -> Action:
    def action(x: Any, choose: Choose) -> Any:
        change(x)
        return x

    return action


def _saved(x: Any, choose: Choose) -> Any:
    file = io.BytesIO()
    torch.save({"x": x}, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)["x"]


def _twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


TENSOR_TO_TENSOR: list[Action] = [
    _changed(lambda x: x.__setitem__((slice(None), 0), 1)),
    _changed(lambda x: x.mul_(2)),
    _changed(lambda x: x[0].zero_()),
    _changed(lambda x: x.numpy().fill(3)),
    _changed(lambda x: x.detach().add_(1)),
    _changed(lambda x: x.requires_grad_()),
    _changed(
        lambda x: x.resize_(3, 5) if x.numel() >= 15 else x
    ),  # of a smaller one torch leaves what was there
    _changed(lambda x: setattr(x, "data", torch.ones(2))),
    lambda x, _: x + torch.rand(1),
    lambda x, _: x.permute(1, 2, 0),
    lambda x, _: x[:, 1:5, ::2],
    lambda x, _: x.flatten()[x.flatten() > 0.5],
    lambda x, _: x.clone(memory_format=torch.contiguous_format),
    lambda x, choose: (copy.deepcopy if choose.random() < 0.5 else copy.copy)(x),
    lambda x, choose: (torch.clone if choose.random() < 0.5 else torch.Tensor.detach)(x),
    lambda x, _: pickle.loads(pickle.dumps(x)),
    lambda x, _: torch.cat([x, x]),
    lambda x, _: torch.stack([x, x.flip(0)]),
    lambda x, _: nn.Parameter(x),
    lambda x, _: nn.functional.interpolate(x[None], (5, 6))[0],
    lambda x, _: x.as_subclass(tv_tensors.Image),
    lambda x, _: tv_tensors.wrap(x.as_subclass(torch.Tensor) * 1, like=x),
    lambda x, _: torch.func.vmap(_twice)(x),
    lambda x, _: torch.jit.trace(_twice, (x,))(x),
    lambda x, choose: x.to(choose.choice([torch.float32, torch.float64, torch.uint8])),
    lambda x, _: v1.Normalize([0.5], [0.5])(x),
    lambda x, _: v2.ToDtype(torch.float32, scale=True)(x),
    lambda x, _: F.erase(x, 1, 2, 3, 4, torch.zeros(1, 1, 1), inplace=True),
    lambda x, _: torch.from_dlpack(x),
    _saved,
    # What torchvision's functions do to tensors, in both versions.
    lambda x, choose: _functional(choose).resize(
        x, _two(choose), antialias=choose.choice([True, True, False])
    ),
    lambda x, choose: _functional(choose).resize(
        x,
        [choose.randint(1, 30)],
        choose.choice(list(InterpolationMode)[:3]),
        max_size=choose.choice([None, 31]),
    ),
    lambda x, choose: _functional(choose).resized_crop(
        x,
        choose.randint(0, 4),
        choose.randint(-1, 4),
        choose.randint(1, 20),
        choose.randint(1, 20),
        _two(choose),
    ),
    lambda x, choose: _functional(choose).crop(
        x, choose.randint(-2, 4), choose.randint(-2, 4), *_two(choose)
    ),
    lambda x, choose: _functional(choose).center_crop(x, _two(choose)),
    lambda x, choose: _functional(choose).hflip(x),
    lambda x, choose: _functional(choose).vflip(x),
    lambda x, choose: _functional(choose).pad(x, [choose.randint(0, 3)], choose.randint(0, 9)),
    lambda x, choose: _functional(choose).rotate(
        x, choose.choice([0, 90, 180, 33.3]), expand=choose.random() < 0.5
    ),
    lambda x, choose: _functional(choose).adjust_brightness(x, choose.random() * 2),
    lambda x, choose: _functional(choose).adjust_contrast(x, choose.random() * 2),
    lambda x, choose: _functional(choose).adjust_saturation(x, choose.random() * 2),
    lambda x, choose: _functional(choose).adjust_hue(x, choose.random() - 0.5),
    lambda x, choose: _functional(choose).gaussian_blur(x, choose.choice([3, [5, 3]])),
    lambda x, choose: _functional(choose).rgb_to_grayscale(x, choose.choice([1, 3])),
    lambda x, choose: _functional(choose).posterize(x, choose.randint(1, 8)),
    lambda x, choose: _functional(choose).solarize(x, choose.choice([0.5, 100])),
    lambda x, choose: _functional(choose).invert(x),
    lambda x, choose: _functional(choose).autocontrast(x),
    lambda x, choose: _functional(choose).equalize(x),
    lambda x, choose: F.convert_image_dtype(x, choose.choice([torch.float32, torch.float16, torch.uint8])),
    lambda x, choose: F2.to_dtype(
        x,
        choose.choice([torch.float32, torch.bfloat16, torch.float64, torch.uint8]),
        scale=choose.random() < 0.7,
    ),
    lambda x, choose: _functional(choose).normalize(
        x, [0.485, 0.456, 0.406], [0.229, 0.224, choose.choice([0.225, 1e-9])], choose.random() < 0.3
    ),
    lambda x, choose: x / choose.choice([255, 255.0, 127.5, -3, 0, -0.0, 1 << 40, True, "2"]),
    lambda x, choose: x.div(
        choose.choice([2, 7.5, -3]), rounding_mode=choose.choice([None, "floor", "trunc"])
    ),
    lambda x, choose: x.to(choose.choice([torch.float16, torch.bfloat16, torch.float32, torch.int64])),
    lambda x, choose: x.to(torch.float32, copy=choose.random() < 0.5),
    lambda x, _: x.to(torch.zeros(1)),
    lambda x, _: x.long(),
    lambda x, choose: x.div(255).sub(0.5).div_(0.25) if choose.random() < 0.5 else x.float().div_(255.0),
    lambda x, choose: x.float() / 255 if choose.random() < 0.5 else x.to(torch.float32) / 255.0,
    lambda x, choose: (
        (x - torch.tensor([1.0, 2, 3])[:, None, None]) / torch.tensor([4.0, 5, 6])[:, None, None]
    ),
    lambda x, choose: x.flip(choose.choice([0, -1, (1, 2)])),
    lambda x, choose: x[[2, 1, 0]],
    lambda x, choose: x[:, : choose.randint(1, 20), choose.randint(0, 5) :],
    lambda x, _: x[None],
    lambda x, _: x[0],
    lambda x, _: x.contiguous(),
    lambda x, _: x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x.mT.contiguous(),
    lambda x, _: x.transpose(1, 2),
    lambda x, _: x.expand(2, *x.shape),
    lambda x, _: x.reshape(-1, x.shape[-1]),
    lambda x, choose: torch.cat([x, x.flip(-1)], choose.choice([0, 1, 2])),
    lambda x, choose: x.new_zeros(3, 60, 60)[:, : x.shape[1], : x.shape[2]].copy_(x),
    lambda x, choose: nn.functional.pad(x, (0, choose.randint(0, 5), 0, choose.randint(0, 5))),
    lambda x, _: x.clone().share_memory_(),  # torch leaves arrays on the former memory without any
    lambda x, _: x.repeat(1, 2, 1),
    lambda x, _: torch.from_numpy(x.numpy()[..., ::-1].copy()),
]


def _functional(choose: Choose) -> Any:
    return choose.choice([F, F2])


def _two(choose: Choose) -> list[int]:
    return [choose.randint(1, 30), choose.randint(1, 30)]


TENSOR_TO_VALUE: list[Action] = [
    lambda x, _: (type(x) is torch.Tensor, type(x).__name__, isinstance(x, torch.Tensor), torch.is_tensor(x)),
    lambda x, _: (x.shape, x.dtype, x.stride(), x.is_contiguous(), x.storage_offset(), x.is_shared()),
    lambda x, _: (x.requires_grad, x.is_leaf, x.grad_fn, x.is_inference(), x.untyped_storage().nbytes()),
    lambda x, _: (repr(x), f"{x.double().mean():.9f}", x.tolist()[0][0]),
    lambda x, _: ({x: 1}[x], bool((x == x).all()), x.equal(x)),
    lambda x, _: (x.data_ptr() == x.data_ptr(), x.numpy().ctypes.data == x.data_ptr()),
    lambda x, _: np.asarray(x),
    lambda x, _: bool(x),
    lambda x, _: F.to_pil_image(x),
    lambda x, _: torch.utils._pytree.tree_map(lambda leaf: leaf.shape, {"a": [x]}),
]

# --- arrays ------------------------------------------------------------------------------------------

ARRAY_TO_ARRAY: list[Action] = [
    lambda x, choose: x[: choose.randint(1, 20), choose.randint(0, 5) :],
    lambda x, choose: x[::-1] if choose.random() < 0.5 else x[:, ::-1],
    lambda x, choose: x[..., ::-1] if choose.random() < 0.5 else x[:, :, [2, 1, 0]],
    lambda x, _: x.transpose(2, 0, 1),
    lambda x, _: np.ascontiguousarray(x[:, ::-1]),
    lambda x, _: x.copy(),
    lambda x, choose: x.astype(choose.choice([np.float32, np.float64, np.uint8])),
    lambda x, _: x / 255,
    lambda x, _: (x.astype(np.float32) / 255 - 0.5) / 0.25,
    lambda x, _: np.moveaxis(x, -1, 0),
    lambda x, _: np.rot90(x),
    lambda x, _: np.pad(x, ((1, 2), (3, 0), (0, 0))),
    lambda x, _: x.swapaxes(0, 1),
    lambda x, _: x[None],
    lambda x, _: x[..., 0],
    lambda x, _: x.view(np.int8),
    lambda x, _: x.ravel(),
    lambda x, _: np.concatenate([x, x]),
    lambda x, _: pickle.loads(pickle.dumps(x)),
    lambda x, _: copy.deepcopy(x),
    _changed(lambda x: x.__setitem__((slice(0, 3), 1), 7)),
    _changed(lambda x: x.fill(3)),
    _changed(lambda x: x.sort()),
    _changed(lambda x: x.setflags(write=False)),
    _changed(lambda x: np.add(x, 1, out=x, casting="unsafe")),
    _changed(lambda x: memoryview(x).cast("B").__setitem__(0, 1)),
]
ARRAY_TO_VALUE: list[Action] = [
    lambda x, _: torch.from_numpy(x),
    lambda x, _: torch.from_numpy(x).permute(2, 0, 1),
    lambda x, _: torch.from_numpy(x.transpose(2, 0, 1)),
    lambda x, _: torch.from_numpy(np.ascontiguousarray(x.transpose(2, 0, 1))).float(),
    lambda x, _: torch.tensor(x),
    lambda x, _: torch.as_tensor(x, dtype=torch.float32),
    lambda x, _: F.to_tensor(x),
    lambda x, _: F2.to_image(x),
    lambda x, _: F.to_pil_image(x),
    lambda x, _: Image.fromarray(x),
    lambda x, _: (x.shape, x.strides, x.dtype, x.flags.writeable, x.flags.c_contiguous, x.nbytes),
    lambda x, _: (x.mean(), x.tobytes()[:9], x.base is None, hash(x.data.tobytes())),
    lambda x, _: (np.shares_memory(x, x[1:]), x.size, len(x), bool(x.any())),
]


def _decoded(file: bytes, choose: Choose) -> Any:
    """Returns a tensor of a file."""
    data = torch.frombuffer(bytearray(file), dtype=torch.uint8)
    if choose.random() < 0.3:
        return decode_jpeg(data)
    mode = choose.choice([ImageReadMode.RGB, ImageReadMode.UNCHANGED, ImageReadMode.GRAY])
    return decode_image(data, mode, choose.random() < 0.2)


def choose_dim(samples: list[Any]) -> int:
    return len(samples[0]["tensors"]) % 2


def _padded(tensors: list[torch.Tensor]) -> torch.Tensor:
    batch = tensors[0].new_zeros(len(tensors), 3, *(max(t.shape[i] for t in tensors) for i in (1, 2)))
    for place, tensor in zip(batch, tensors, strict=True):
        place[:, : tensor.shape[1], : tensor.shape[2]].copy_(tensor)
    return batch


COLLATES: list[Callable[[list[Any]], Any]] = [
    default_collate,
    default_collate,
    lambda samples: torch.stack([tensor for sample in samples for tensor in sample["tensors"]]),
    lambda samples: [torch.stack(sample["tensors"]) for sample in samples],
    lambda samples: torch.cat([tensor.flatten() for sample in samples for tensor in sample["tensors"]]),
    lambda samples: samples,
    lambda samples: (default_collate(samples), samples[0]["tensors"][0].zero_(), samples),
    lambda samples: nn.utils.rnn.pad_sequence([sample["tensors"][0].flatten() for sample in samples]),
    lambda samples: torch.stack([sample["tensors"][-1] for sample in samples], choose_dim(samples)),
    lambda samples: torch.cat([sample["tensors"][-1] for sample in samples]),
    lambda samples: torch.cat([sample["tensors"][-1][None] for sample in samples]),
    lambda samples: [torch.stack([x, x]) for sample in samples for x in sample["tensors"]],
    lambda samples: [(torch.stack([x]), x) for sample in samples for x in sample["tensors"]],
    lambda samples: torch.stack([s["tensors"][-1] for s in samples]).float().div(255).flip(-1),
    lambda samples: _padded([sample["tensors"][-1] for sample in samples]),
    lambda samples: torch.stack([s["tensors"][-1] for s in samples], out=torch.empty(0)),
]


# --- programs ----------------------------------------------------------------------------------------

_ADDRESS = re.compile(r"0x[0-9A-Fa-f]+")
# Names of classes, which a deferred image cannot hide.
_NAMES = {
    "headrace.deferred.image.LazyJpegFile": "PIL.JpegImagePlugin.JpegImageFile",
    "headrace.deferred.image.LazyImage": "PIL.Image.Image",
    "LazyJpegFile": "JpegImageFile",
    "LazyPngFile": "PngImageFile",
    "LazyWebpFile": "WebPImageFile",
    "LazyImage": "Image",
}


def frozen(value: Any) -> Any:
    """Returns what can be compared of a value, all the way down."""
    if isinstance(value, torch.Tensor):
        plain = value.detach().as_subclass(torch.Tensor).reshape(-1).clone()
        bits = plain.view(torch.uint8).numpy().tobytes()
        traits = (value.requires_grad, value.is_leaf, value.is_inference())
        return type(value).__name__, value.dtype, value.shape, value.stride(), traits, bits
    if isinstance(value, Image.Image):
        return "image", value.mode, value.size, sorted(map(str, value.info.items())), value.tobytes()
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.strides, value.flags.writeable, value.tobytes()
    if isinstance(value, dict):
        return {str(key): frozen(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [frozen(each) for each in value]
    return value if isinstance(value, (bool, int, bytes)) else _note(repr(value))


def _note(text: str) -> str:
    for name, stands_for in _NAMES.items():
        text = text.replace(name, stands_for)
    return _ADDRESS.sub("0x", text)


def attempt(action: Callable[..., Any], *arguments: Any) -> Any:
    """Returns an action's result, or its error."""
    try:
        return action(*arguments)
    except Exception as error:
        return type(error).__name__, _note(str(error))


def _draws() -> tuple[float, ...]:
    return torch.rand(1).item(), float(np.random.random()), random.random()


class Programs(Dataset[Any]):
    """Sample i is what program i // SAMPLES makes of one file."""

    def __init__(self, programs: Sequence[int]) -> None:
        self.programs = list(programs)
        self.transforms: dict[int, Any] = {}  # made where they are used first, and kept
        self.kept: list[Any] = []

    def __len__(self) -> int:
        return SAMPLES * len(self.programs)

    def __getitem__(self, index: int) -> Any:
        program = self.programs[index // SAMPLES]
        torch.manual_seed(program)
        np.random.seed(program)
        random.seed(program)
        torch.set_warn_always(True)  # not only at the first program of a process
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            sample = self._sample(program, index % SAMPLES)
        sample["warnings"] = [(each.category.__name__, _note(str(each.message))) for each in caught]
        sample["program"] = program
        return sample

    def _sample(self, program: int, number: int) -> dict[str, Any]:
        choose = Choose(program)
        if program not in self.transforms:
            self.transforms[program] = attempt(transform_of, choose)
        else:
            attempt(transform_of, choose)
        file = FILES[(choose.randrange(len(FILES)) + (number if choose.random() < 0.5 else 0)) % len(FILES)]
        values: list[Any] = [attempt(Image.open, io.BytesIO(file))]
        if choose.random() < 0.3:
            values = [attempt(_decoded, file, choose)]
        if choose.random() < 0.8 and isinstance(values[0], Image.Image):
            values = [attempt(values[0].convert, "RGB")]
        notes: list[Any] = []
        for _ in range(choose.randint(1, 7)):
            self._step(values, notes, program, choose)
        if not any(isinstance(value, torch.Tensor) for value in values):
            self._transform(values, notes, program, choose)
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        images = [value for value in values if isinstance(value, (Image.Image, np.ndarray))]
        self.kept += [*tensors[:1], *images[:1]]
        notes += [attempt(lambda: frozen(choose.choice(self.kept[-4:]))), _draws()] if self.kept else []
        return {"tensors": tensors, "notes": notes, "images": [attempt(frozen, image) for image in images]}

    def _step(self, values: list[Any], notes: list[Any], program: int, choose: Choose) -> None:
        if choose.random() < 0.35:
            self._transform(values, notes, program, choose)
            return
        value = choose.choice(values)
        if isinstance(value, Image.Image):
            changes, looks = IMAGE_TO_IMAGE, IMAGE_TO_VALUE
        elif isinstance(value, torch.Tensor):
            changes, looks = TENSOR_TO_TENSOR, TENSOR_TO_VALUE
        elif isinstance(value, np.ndarray):
            changes, looks = ARRAY_TO_ARRAY, ARRAY_TO_VALUE
        else:
            return
        if choose.random() < 0.6:
            values.append(attempt(choose.choice(changes), value, choose))
        else:
            found = attempt(choose.choice(looks), value, choose)
            (values if isinstance(found, (torch.Tensor, np.ndarray)) else notes).append(found)
        notes.append(_draws() if choose.random() < 0.3 else None)

    def _transform(self, values: list[Any], notes: list[Any], program: int, choose: Choose) -> None:
        images = [value for value in values if isinstance(value, Image.Image)]
        if not images:
            return
        image = choose.choice(images)
        for _ in range(choose.choice([1, 1, 1, 2, 4])):
            found = attempt(self.transforms[program], image)
            # Policies may give several.
            values += list(found) if isinstance(found, tuple) and not isinstance(found[0], str) else [found]
        notes.append(_draws())


def collate(samples: list[Any]) -> Any:
    """Applies the program's own collate_fn, and returns its result and the samples' states."""
    program = samples[0].pop("program")
    notes = [frozen({key: sample[key] for key in ("notes", "images", "warnings")}) for sample in samples]
    rest = [{"tensors": sample["tensors"]} for sample in samples]
    made = attempt(Choose(-program - 1).choice(COLLATES), rest)
    return program, notes, frozen(made)


def results(programs: Sequence[int]) -> list[Any]:
    """Returns the results of all programs, in this process."""
    dataset = Programs(programs)
    return [collate([dataset[SAMPLES * n + i] for i in range(SAMPLES)]) for n in range(len(programs))]
