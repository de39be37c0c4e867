"""Datasets of many forms, in worker processes: with deferred images every batch is the one that torch gives.

All datasets share one worker process for each loader: processes, not samples, are what these tests wait for.
"""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, default_collate
from torchvision import datasets, tv_tensors
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2

import headrace
from support.equal import same
from support.jpegs import image_folder

SAMPLES = 6  # of each dataset
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
END = [v1.ToTensor(), v1.Normalize(MEAN, STD)]
END_V2 = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
CROP_V2 = [v2.RandomResizedCrop(24), v2.RandomHorizontalFlip()]
CROP = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip()]


class Opened(Dataset[Any]):
    """Paths in a list, opened as most people open them."""

    def __init__(
        self, folder: Path, transform: Any, form: Callable[[Any, int, str], Any] | None = None
    ) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg"))
        self.transform = transform
        self.form = form or (lambda image, index, _: (image, index))

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        return self.form(self.transform(image), index, self.paths[index])


class Sample(NamedTuple):
    image: Any
    label: int


class BlurOfMoco:
    def __call__(self, image: Image.Image) -> Image.Image:
        return image.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


class Views:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> list[Any]:
        return [transform(image) for transform in self.transforms]


class OwnCrop(v1.RandomResizedCrop):
    def forward(self, img: Any) -> Any:
        return super().forward(img) if np.random.random() < 0.5 else F.resize(img, list(self.size))


class InMemory(Dataset[Any]):
    """Files kept as bytes, batches asked for at once: what a Hugging Face dataset does with a transform."""

    def __init__(self, folder: Path) -> None:
        self.files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
        crop = v1.Compose([*CROP, *END])
        self.transform = lambda rows: {"pixels": [crop(image) for image in rows["image"]], "n": rows["n"]}

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(io.BytesIO(self.files[index]))
        image.load()
        rows = self.transform({"image": [ImageOps.exif_transpose(image).convert("RGB")], "n": [index]})
        return {key: value[0] for key, value in rows.items()}


class WithMask(Opened):
    """An image, a mask of the same size and boxes, changed together by v2."""

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index]).convert("RGB")
        mask = tv_tensors.Mask(torch.arange(image.width * image.height).view(image.height, image.width) % 5)
        return self.transform({"image": image, "mask": mask, "label": index})


class FolderWithPaths(datasets.ImageFolder):
    def __getitem__(self, index: int) -> Any:
        return (*super().__getitem__(index), self.samples[index][0])


def own_loader(path: str) -> Image.Image:
    with Image.open(path) as image:
        return ImageOps.exif_transpose(image).convert("RGB")


def own_noise(image: Image.Image) -> Image.Image:
    pixels = np.asarray(image).astype(np.int16)
    pixels += np.random.randint(-8, 9, pixels.shape, dtype=np.int16)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def three_generators(image: Image.Image) -> Any:
    image = image.rotate(random.uniform(-20, 20), Image.Resampling.BILINEAR).resize((30, 26))
    left = int(torch.randint(0, 6, ()))
    image = ImageEnhance.Color(image.crop((left, 1, left + 20, 21))).enhance(float(np.random.random()))
    return F.to_tensor(image) * torch.rand(1) + torch.from_numpy(
        np.random.random((3, 1, 1)).astype(np.float32)
    )


def by_numpy(image: Image.Image) -> Any:
    return torch.from_numpy(np.array(image.resize((20, 20)), np.float32).transpose(2, 0, 1) / 255)


def patched(image: Image.Image) -> Any:
    """Crops of the low-resolution and the high-resolution image, as super-resolution code makes them."""
    small = image.resize((image.width // 2, image.height // 2), Image.Resampling.BICUBIC)
    left = random.randint(0, 4)
    low, high = F.to_tensor(small)[:, 2:12, left : left + 10], F.to_tensor(image)
    pair = low, high[:, 4:24, 2 * left : 2 * left + 20]
    return [x.flip(-1).contiguous() if random.random() < 0.5 else x.contiguous() for x in pair]


def with_target(image: Image.Image) -> Any:
    """An image and a mask, changed together by functions, as segmentation code does it."""
    mask = image.convert("L").resize((32, 32), Image.Resampling.NEAREST)
    image = image.resize((32, 32))
    if random.random() < 0.5:
        image, mask = F.hflip(image), F.hflip(mask)
    values = F.normalize(F.to_tensor(image), MEAN, STD)
    return values, torch.from_numpy(np.array(mask)), torch.as_tensor(np.array(mask), dtype=torch.int64)


def by_float_array(image: Image.Image) -> Any:
    pixels: Any = np.asarray(image.resize((20, 20)), dtype=np.float32)
    pixels = (pixels - np.array(MEAN, np.float32)) / 255
    return torch.from_numpy(pixels).permute(2, 0, 1).contiguous()


OUTSIDE: dict[str, Callable[[Image.Image], Any]] = {
    "to_tensor alone": lambda image: F.to_tensor(image.resize((24, 20))),
    "ToTensor alone": lambda image: v1.ToTensor()(image.resize((24, 20))),
    "pil_to_tensor": lambda image: F.pil_to_tensor(image.resize((24, 20))),
    "from_numpy": lambda image: (
        torch.from_numpy(np.array(image.resize((24, 20)))).permute(2, 0, 1).float() / 255
    ),
    "arrays": lambda image: np.array(image.resize((24, 20))),
    "arrays that change": lambda image: np.add(a := np.array(image.resize((24, 20))), 1, out=a),
    "arrays in lists": lambda image: [np.array(image.resize((24, 20)), np.float32), image.size],
    "v1 on tensors": lambda image: F.normalize(
        F.hflip(F.convert_image_dtype(F.center_crop(F.pil_to_tensor(image), [18, 18]))), MEAN, STD
    ),
    "v2 on tensors": lambda image: v2.functional.to_dtype(
        v2.ColorJitter(0.4, None, 0.4, 0.1)(v2.functional.resize(v2.functional.to_image(image), [20, 22])),
        torch.float32,
        scale=True,
    ),
    "v2 on tensors, RandAugment": lambda image: v2.RandAugment()(
        v2.functional.resize(v2.functional.pil_to_tensor(image), [20, 22])
    ),
    "pairs": patched,
    "a target": with_target,
    "arithmetic of NumPy": by_float_array,
    "a read-only array": lambda image: np.asarray(image.resize((9, 9))).flags.writeable,
}


def stacked(samples: list[Any]) -> Any:
    return torch.stack([image for image, _ in samples]), torch.tensor([label for _, label in samples])


def listed(samples: list[Any]) -> Any:
    return [image for image, _ in samples], [label for _, label in samples]


def as_images(samples: list[Any]) -> Any:
    return [(image.tobytes(), image.size, label) for image, label in samples]


class Kept(Opened):
    """Tensors that are kept, and changed later, as a cache and its bugs do."""

    def __init__(self, folder: Path, change: Callable[[Any, int], Any]) -> None:
        super().__init__(folder, v1.Compose([v1.Resize((20, 24)), *END]))
        self.change, self.kept = change, dict[int, Any]()

    def __getitem__(self, index: int) -> Any:
        if index % 3 not in self.kept:
            self.kept[index % 3] = super().__getitem__(index % 3)[0]
        return self.change(self.kept[index % 3], index), index


class Decoded(Opened):
    """Files that are read as tensors."""

    def __getitem__(self, index: int) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that torchcodec takes the function's place
            image = torchvision.io.decode_image(self.paths[index], "RGB")
        return self.transform(image), index


class OneBuffer(Opened):
    """All samples in the same memory, which `collate_fn` has to copy in time."""

    def __getitem__(self, index: int) -> Any:
        self.buffer = getattr(self, "buffer", torch.empty(3, 24, 24))
        self.buffer.copy_(super().__getitem__(index)[0])
        return torch.stack([super().__getitem__(index)[0]] * 3 + [self.buffer]), index


def _mixed_up(samples: list[Any]) -> Any:
    images, labels = default_collate(samples)
    return images.roll(1, 0) * 0.3 + images * 0.7, labels


def _aliases(samples: list[Any]) -> Any:
    batch = torch.stack([image for image, _ in samples])
    return batch, batch, batch[1:], batch.view(-1), batch[0, 0, :2]


def _moco() -> Any:
    jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)
    return v1.Compose([*CROP, jitter, v1.RandomGrayscale(0.2), v1.RandomApply([BlurOfMoco()], 0.5), *END])


def _small() -> Any:
    return v1.Compose([v1.RandomResizedCrop(12, (0.05, 0.4), interpolation=3), *END])


V1: dict[str, list[Any]] = {
    "crop and flip": CROP,
    "resize and center crop": [v1.Resize(40), v1.CenterCrop(32)],
    "padding around small images": [v1.CenterCrop(120)],
    "colors": [*CROP, v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomGrayscale(0.3)],
    "RandAugment": [*CROP, v1.RandAugment()],
    "AutoAugment": [*CROP, v1.AutoAugment(fill=(1, 2, 3))],
    "TrivialAugmentWide": [*CROP, v1.TrivialAugmentWide(interpolation=v1.InterpolationMode.BILINEAR)],
    "AugMix": [*CROP, v1.AugMix()],
    "warps": [v1.Resize((30, 30)), v1.RandomAffine(9, (0.1, 0.1), (0.8, 1.2), 5), v1.RandomPerspective()],
    "padding": [v1.Resize((30, 30)), v1.Pad(2, 7), v1.RandomCrop(32, 3, padding_mode="reflect")],
    "a subclass of a transform": [OwnCrop(24), v1.RandomVerticalFlip()],
    "a user's transform after the crop": [*CROP, own_noise],
    "a user's transform before the crop": [own_noise, *CROP],
    "containers": [v1.RandomOrder([*CROP]), v1.RandomChoice([v1.Resize((24, 24)), OwnCrop(24)]), CROP[0]],
    "blur": [*CROP, v1.GaussianBlur(5)],
}
Made = tuple[Callable[[Path], Any], Callable[[list[Any]], Any]]
MADE: dict[str, Made] = {
    **{
        name: (lambda folder, steps=steps: Opened(folder, v1.Compose([*steps, *END])), default_collate)  # type: ignore[misc]
        for name, steps in V1.items()
    },
    "v2": (lambda folder: Opened(folder, v2.Compose([*CROP, *END_V2])), default_collate),
    "v2 with erasing": (
        lambda folder: Opened(folder, v2.Compose([*CROP, v2.RandAugment(), *END_V2, v2.RandomErasing(0.7)])),
        default_collate,
    ),
    "a mask beside the image": (
        lambda folder: WithMask(
            folder,
            v2.Compose(
                [
                    v2.RandomCrop((20, 20)),
                    v2.ToImage(),
                    v2.ToDtype({tv_tensors.Image: torch.float32, "others": None}, scale=True),
                ]
            ),
        ),
        default_collate,
    ),
    "erasing": (
        lambda folder: Opened(folder, v1.Compose([*CROP, *END, v1.RandomErasing(0.7, value="random")])),
        default_collate,
    ),
    "dict samples": (
        lambda folder: Opened(folder, v1.Compose([*CROP, *END]), lambda x, i, p: {"x": x, "n": i, "p": p}),
        default_collate,
    ),
    "named tuples": (
        lambda folder: Opened(folder, v1.Compose([*CROP, *END]), lambda x, i, _: Sample(x, i)),
        default_collate,
    ),
    "uint8": (lambda folder: Opened(folder, v1.Compose([*CROP, v1.PILToTensor()])), default_collate),
    "MoCo v2, two views": (lambda folder: Opened(folder, Views(_moco(), _moco())), default_collate),
    "DINO, multi-crop": (lambda folder: Opened(folder, Views(_moco(), *[_small()] * 4)), default_collate),
    "TenCrop": (
        lambda folder: Opened(
            folder,
            v1.Compose([v1.Resize(30), v1.TenCrop(24), lambda crops: torch.stack([*map(END[0], crops)])]),
        ),
        default_collate,
    ),
    "some tensors touched, others not": (
        lambda folder: Opened(folder, v1.Compose([*CROP, *END, v1.RandomErasing(0.4)])),
        default_collate,
    ),
    "decode_image": (lambda folder: Decoded(folder, v2.Compose([*CROP_V2, *END_V2[1:]])), default_collate),
    "decode_image, resized": (
        lambda folder: Decoded(folder, v2.Compose([v2.Resize(30), v2.CenterCrop(24), v2.RandomInvert()])),
        stacked,
    ),
    "decode_image, arithmetic": (
        lambda folder: Decoded(folder, lambda x: x[:, :20, :20].float() / 255 + x[0, 0, 0]),
        default_collate,
    ),
    "kept tensors": (lambda folder: Kept(folder, lambda x, _: x), default_collate),
    "kept tensors that change": (lambda folder: Kept(folder, lambda x, i: x.add_(i)), stacked),
    "kept tensors that change after a stack": (
        lambda folder: Kept(folder, lambda x, i: (torch.stack([x, x]), x.mul_(i))[0]),
        default_collate,
    ),
    "crops of kept tensors": (
        lambda folder: Kept(folder, lambda x, i: x[:, i % 9 : i % 9 + 9, 3:19]),
        stacked,
    ),
    "one buffer for all": (lambda folder: OneBuffer(folder, v1.Compose([*CROP, *END])), default_collate),
    "a mixed batch": (lambda folder: Opened(folder, v1.Compose([*CROP, *END])), _mixed_up),
    "a batch and its views": (lambda folder: Opened(folder, v1.Compose([*CROP, *END])), _aliases),
    "large batches": (lambda folder: Opened(folder, v1.Compose([v1.Resize((160, 170)), *END])), _aliases),
    "tensors of several sizes": (lambda folder: Opened(folder, v1.Compose([v1.Resize(99), *END])), listed),
    "all three generators": (lambda folder: Opened(folder, three_generators), default_collate),
    "NumPy": (lambda folder: Opened(folder, by_numpy), default_collate),
    **{
        f"outside of a Compose: {name}": (
            lambda folder, function=function: Opened(folder, function),  # type: ignore[misc]
            default_collate,
        )
        for name, function in OUTSIDE.items()
    },
    "bytes in memory": (InMemory, default_collate),
    "ImageFolder subclass": (
        lambda folder: FolderWithPaths(str(folder), v1.Compose([*CROP, *END])),
        default_collate,
    ),
    "a loader of one's own": (
        lambda folder: datasets.ImageFolder(str(folder), v1.Compose([*CROP, *END]), loader=own_loader),
        default_collate,
    ),
    "ConcatDataset": (
        lambda folder: ConcatDataset([Opened(folder, v1.Compose([*CROP, *END]))] * 2),
        default_collate,
    ),
    "Subset": (
        lambda folder: Subset(Opened(folder, v1.Compose([*CROP, *END])), [9, 3, 4, 11, 5, 6, 7]),
        default_collate,
    ),
    "a collate_fn that stacks": (lambda folder: Opened(folder, v1.Compose([*CROP, *END])), stacked),
    "a collate_fn that lists": (lambda folder: Opened(folder, v1.Compose([v1.Resize(20), *END])), listed),
    "images rather than tensors": (lambda folder: Opened(folder, v1.Compose(CROP)), as_images),
}


class All(Dataset[Any]):
    """The first samples of every dataset, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.datasets = {name: make(folder) for name, (make, _) in MADE.items()}
        self.names = list(MADE)

    def __len__(self) -> int:
        return SAMPLES * len(self.names)

    def __getitem__(self, index: int) -> Any:
        name = self.names[index // SAMPLES]
        return name, self.datasets[name][index % SAMPLES]


def collate(samples: list[Any]) -> Any:
    name = samples[0][0]
    return name, MADE[name][1]([sample for _, sample in samples])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), 14, classes=2, side=60)


def batches(loader: type[DataLoader[Any]], folder: Path, **options: Any) -> dict[str, Any]:
    torch.manual_seed(5)
    made = loader(All(folder), SAMPLES, collate_fn=collate, num_workers=1, **options)
    return dict(made)


@pytest.fixture(scope="module")
def by_loader(folder: Path) -> dict[str, dict[str, Any]]:
    return {
        "torch": batches(DataLoader, folder),
        "lazy": batches(headrace.DataLoader, folder),
        "not lazy": batches(headrace.DataLoader, folder, deferred=False),
        "lazy, seed 7": batches(headrace.DataLoader, folder, seed=7),
        "not lazy, seed 7": batches(headrace.DataLoader, folder, seed=7, deferred=False),
    }


@pytest.mark.parametrize("name", MADE)
def test_a_dataset_gives_the_same_batches_whatever_runs_natively(name: str, by_loader: Any) -> None:
    assert same(by_loader["lazy"][name], by_loader["torch"][name])
    assert same(by_loader["not lazy"][name], by_loader["torch"][name])
    assert same(by_loader["lazy, seed 7"][name], by_loader["not lazy, seed 7"][name])


class Stream(IterableDataset[Any]):
    """Samples one after another, as a WebDataset pipeline gives them."""

    def __init__(self, folder: Path) -> None:
        self.files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]
        self.transform = v1.Compose([*CROP, v1.ColorJitter(0.4, 0.4), *END])

    def __iter__(self) -> Any:
        for number, data in enumerate(self.files):
            image = Image.open(io.BytesIO(data))
            image.load()
            yield self.transform(image.convert("RGB")), number, type(image).__name__


def test_an_iterable_dataset_gives_the_same_batches(folder: Path) -> None:
    def streamed(loader: type[DataLoader[Any]], **options: Any) -> list[Any]:
        torch.manual_seed(5)
        return list(loader(Stream(folder), 4, num_workers=1, **options))

    wanted, ours = streamed(DataLoader), streamed(headrace.DataLoader)
    assert {kind for batch in ours for kind in batch[2]} == {"JpegImageFile"}
    assert same([batch[:2] for batch in ours], [batch[:2] for batch in wanted])
    assert same(streamed(headrace.DataLoader, deferred=False), wanted)
