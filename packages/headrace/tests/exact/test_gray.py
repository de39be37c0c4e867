"""Gray pipelines, CMYK files and EXIF orientation: batches as torch's DataLoader makes them, all natively."""

from __future__ import annotations

import io
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, Dataset
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
import headrace.testing
from headrace._native import ffi
from headrace._native.decoders import native_formats
from support.images import check_first_sample, decoded_as_png
from support.jpegs import cmyk, image_folder, jpeg, picture
from support.odd_files import saved
from support.pngs import png

FILES = 40
SIZED: list[Any] = [v1.Resize(48), v1.CenterCrop((40, 44))]


def gray_loader(path: str) -> Image.Image:
    return Image.open(path).convert("L")


def write(folder: Path, name: str, data: bytes) -> None:
    (folder / "class0").mkdir(parents=True, exist_ok=True)
    (folder / "class0" / f"{name}.jpg").write_bytes(data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of every kind: gray, colour, progressive, CMYK, YCCK, RGB, tiny ones."""
    root = image_folder(tmp_path_factory.mktemp("files"), FILES)
    rng = np.random.default_rng(1)
    for number, (width, height) in enumerate([(1, 1), (70, 51), (3, 80), (64, 64)]):
        write(root, f"cmyk{number}", cmyk(rng, width, height))
        write(root, f"ycck{number}", cmyk(rng, width, height, ycck=True, progressive=number == 3))
        write(root, f"gray{number}", jpeg(rng, "gray", width, height))
        file = io.BytesIO()
        picture(rng, width, height).save(file, "JPEG", keep_rgb=True)
        write(root, f"rgb{number}", file.getvalue())
    return root


def check(
    dataset: Any, *, batched: bool = True, pillow: int = 0, **settings: Any
) -> headrace.DataLoader[Any]:
    """That a loader gives what torch's gives, without help from Pillow."""
    loader = headrace.DataLoader(dataset, batch_size=7, num_workers=2, **settings)
    assert (loader.plan().native is not None) == batched, loader.explain()
    expected = list(TorchDataLoader(dataset, batch_size=7))
    found = list(loader)
    assert len(found) == len(expected)
    for (images, labels), (their_images, their_labels) in zip(found, expected, strict=True):
        assert images.dtype == their_images.dtype
        assert images.shape == their_images.shape
        assert torch.equal(images, their_images)
        assert torch.equal(labels, their_labels)
    if batched:
        assert loader.stats().decoded_by["pillow"] == pillow
    return loader


def test_cmyk_files_of_a_folder_are_decoded_natively(folder: Path) -> None:
    loader = check(ImageFolder(str(folder), v1.Compose([*SIZED, v1.ToTensor()])))
    assert sum(loader.stats().decoded_by.values()) == FILES + 16


@pytest.mark.skipif("libdeflate" not in ffi.decoder_names(), reason="this build has no libdeflate")
def test_no_sample_of_a_folder_like_imagenet_needs_python(tmp_path: Path) -> None:
    """JPEGs, 22 of them CMYK, and one PNG that is called a JPEG."""
    image_folder(tmp_path, 30)
    rng = np.random.default_rng(8)
    for number in range(22):
        write(tmp_path, f"cmyk{number}", cmyk(rng, 60 + number, 81 - number, ycck=number % 2 == 0))
    write(tmp_path, "png", saved("PNG"))
    steps = [v1.Resize(48), v1.CenterCrop(40), v1.ToTensor(), v1.Normalize([0.5] * 3, [0.2] * 3)]
    loader = check(ImageFolder(str(tmp_path), v1.Compose(steps)))
    assert decoded_as_png(loader) == 1
    steps = [v1.RandomResizedCrop(40), v1.RandomHorizontalFlip(), *steps[2:]]
    random = headrace.DataLoader(ImageFolder(str(tmp_path), v1.Compose(steps)), 8, num_workers=2, seed=1)
    for index, image in enumerate(torch.cat([images for images, _ in random])):
        assert torch.equal(image, headrace.testing.replay(random, index, 0)), f"sample {index}"
    assert random.stats().decoded_by["pillow"] == 0


OTHER_FORMATS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{f"PNG {mode}": ("PNG", mode, {}) for mode in ("RGB", "RGBA", "L", "LA", "P", "1")},
    "PNG I;16": ("PNG", "I;16", {}),
    "PNG P, one colour transparent": ("PNG", "P", {"transparency": 3}),
    "PNG RGB, one colour transparent": ("PNG", "RGB", {"transparency": (1, 2, 3)}),
    "WebP": ("WEBP", "RGB", {}),
    "WebP with alpha": ("WEBP", "RGBA", {"lossless": True}),
    "TIFF": ("TIFF", "RGB", {}),
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_files_of_other_formats_become_gray_as_pillow_makes_them(tmp_path: Path, name: str) -> None:
    kind, mode, options = OTHER_FORMATS[name]
    rng = np.random.default_rng(4)
    image = picture(rng, 60, 50)
    if mode == "I;16":
        image = Image.fromarray(rng.integers(0, 65536, (50, 60), dtype=np.uint16))
    elif mode in ("RGBA", "LA"):
        image = image.convert(mode)
        image.putalpha(picture(rng, 60, 50).convert("L"))
    else:
        image = image.convert(mode)
    file = io.BytesIO()
    image.save(file, kind, **options)
    write(tmp_path, "a", file.getvalue())
    dataset = ImageFolder(str(tmp_path), v1.Compose([*SIZED, v1.ToTensor()]), loader=gray_loader)
    loader: headrace.DataLoader[Any] = headrace.DataLoader(dataset, num_workers=1)
    assert loader.plan().native is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's advice on palettes
        assert torch.equal(next(iter(loader))[0][0], dataset[0][0])


ENDS: dict[str, list[Any]] = {
    "ToTensor": [v1.ToTensor()],
    "ToTensor, Normalize": [v1.ToTensor(), v1.Normalize((0.5,), (0.25,))],
    "PILToTensor": [v1.PILToTensor()],
    "float16": [v1.PILToTensor(), v1.ConvertImageDtype(torch.float16)],
    "v2": [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.1], [0.9])],
    "numbers": [v1.ToTensor(), v1.Lambda(lambda x: x * 2 - 1)],
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["nchw", "nhwc"])
def test_a_loader_that_converts_to_gray(folder: Path, end: str, layout: torch.memory_format) -> None:
    dataset = ImageFolder(str(folder), v1.Compose([*SIZED, *ENDS[end]]), loader=gray_loader)
    loader = check(dataset, memory_format=layout)
    assert next(iter(loader))[0].shape[1:] == (1, 40, 44)
    assert "[N, 1, 40, 44]" in loader.explain()


CONVERSIONS: dict[str, Callable[[], Any]] = {
    "v1.Grayscale": v1.Grayscale,
    "v2.Grayscale": v2.Grayscale,
    "Lambda": lambda: v1.Lambda(lambda image: image.convert("L")),
    "function": lambda: lambda image: image.convert("L"),
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_conversion_to_gray_anywhere_in_the_transform(folder: Path, conversion: str, place: int) -> None:
    steps = [*SIZED[:place], CONVERSIONS[conversion](), *SIZED[place:], v1.ToTensor()]
    loader = check(ImageFolder(str(folder), v1.Compose(steps)))
    assert next(iter(loader))[0].shape[1] == 1


@pytest.mark.parametrize(
    "back",
    [v1.Grayscale(3), v2.RGB(), v1.Lambda(lambda image: image.convert("RGB"))],
    ids=["3", "RGB", "convert"],
)
def test_gray_images_that_become_rgb_again(folder: Path, back: Any) -> None:
    transform = v1.Compose(
        [SIZED[0], back, SIZED[1], v1.ToTensor(), v1.Normalize([0.5] * 3, [0.1, 0.2, 0.3])]
    )
    loader = check(ImageFolder(str(folder), transform, loader=gray_loader))
    assert next(iter(loader))[0].shape[1] == 3
    plain = v1.Compose([v1.Grayscale(), *SIZED, back, v1.PILToTensor()])
    assert next(iter(check(ImageFolder(str(folder), plain))))[0].shape[1] == 3


def test_random_steps_on_gray_images_draw_and_do_what_torchvision_does(folder: Path) -> None:
    steps = [
        v1.RandomResizedCrop(40),
        v1.RandomHorizontalFlip(),
        v1.ColorJitter(0.4, 0.4, 0.4, 0.1),
        v1.RandomApply([v1.RandomRotation(20, fill=7)], p=0.7),
        v1.RandomAutocontrast(),
        v1.ToTensor(),
    ]
    dataset = ImageFolder(str(folder), v1.Compose(steps), loader=gray_loader)
    loader = headrace.DataLoader(dataset, batch_size=8, num_workers=2, seed=3)
    assert loader.plan().native is not None, loader.explain()
    images = torch.cat([images for images, _ in loader])
    assert images.shape == (len(dataset), 1, 40, 40)
    for index, image in enumerate(images):
        assert torch.equal(image, headrace.testing.replay(loader, index, 0)), f"sample {index}"


OTHERS: dict[str, Any] = {
    "a blur": v1.GaussianBlur(3, (1.0, 1.0)),
    "a fill of three levels": v1.Pad(0, fill=(0, 0, 0)),
    "gray by chance": v1.RandomApply([v1.Grayscale(3)], p=1.0),
    "of the user's own": v1.Lambda(lambda image: ImageOps.invert(image)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_not_proven_for_gray_runs_as_python_with_a_reason(folder: Path, other: str) -> None:
    steps = [v1.Resize((40, 44)), OTHERS[other], v1.ToTensor(), v1.Normalize((0.5,), (0.25,))]
    dataset = ImageFolder(str(folder), v1.Compose(steps), loader=gray_loader)
    loader = headrace.DataLoader(dataset, batch_size=7, num_workers=2)
    assert loader.plan().native is None
    assert loader.plan().reasons
    if other == "a fill of three levels":
        for each in (loader, TorchDataLoader(dataset, batch_size=7)):
            with pytest.raises(ValueError, match="fill"):
                next(iter(each))
    elif other != "gray by chance":
        check(dataset, batched=False)


def test_erasing_one_channel_is_left_to_torchvision(folder: Path) -> None:
    steps = [*SIZED, v1.ToTensor(), v1.RandomErasing(1.0)]
    dataset = ImageFolder(str(folder), v1.Compose(steps), loader=gray_loader)
    loader = headrace.DataLoader(dataset, batch_size=7, num_workers=1)
    assert loader.plan().native is None
    images = torch.cat([images for images, _ in loader])
    assert images.shape == (len(dataset), 1, 40, 44)
    assert (images == 0).flatten(1).any(1).all()


def test_folders_of_one_mode_are_read_one_after_another(folder: Path) -> None:
    transform = v1.Compose([*SIZED, v1.ToTensor()])
    gray = ImageFolder(str(folder), transform, loader=gray_loader)
    loader = check(ConcatDataset([gray, gray]))
    assert next(iter(loader))[0].shape[1] == 1
    mixed: headrace.DataLoader[Any] = headrace.DataLoader(
        ConcatDataset([gray, ImageFolder(str(folder), transform)]), num_workers=0
    )
    assert mixed.plan().native is None
    assert "others to L" in mixed.explain()


def test_a_mean_of_three_numbers_is_torchs_error(folder: Path) -> None:
    steps = [*SIZED, v1.ToTensor(), v1.Normalize([0.5] * 3, [0.5] * 3)]
    dataset = ImageFolder(str(folder), v1.Compose(steps), loader=gray_loader)
    with pytest.raises(RuntimeError, match="shape"):
        next(iter(TorchDataLoader(dataset, batch_size=2)))
    loader = headrace.DataLoader(dataset, batch_size=2, num_workers=1)
    assert loader.plan().native is None
    with pytest.raises(RuntimeError, match="shape"):
        next(iter(loader))


def test_files_that_native_code_refuses_are_gray_from_pillow(tmp_path: Path) -> None:
    write(tmp_path, "tiff", saved("TIFF"))
    for number in range(3):
        write(tmp_path, f"whole{number}", jpeg(np.random.default_rng(number), "4:2:0", 60, 50))
    dataset = ImageFolder(str(tmp_path), v1.Compose([*SIZED, v1.ToTensor()]), loader=gray_loader)
    check(dataset, pillow=1)


def test_arrays_in_memory_become_gray() -> None:
    dataset = datasets.CIFAR10.__new__(datasets.CIFAR10)
    dataset.data = np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), dtype=np.uint8)
    dataset.targets = list(range(20))
    dataset.target_transform = None
    for steps in (
        [v1.Grayscale()],
        [v1.Grayscale(), v1.CenterCrop(30)],
        [v1.Resize((20, 20)), v1.Grayscale()],
    ):
        dataset.transform = v1.Compose([*steps, v1.ToTensor(), v1.Normalize(0.5, 0.5)])
        check(dataset)
        dataset.transform = v1.Compose([*steps, own, v1.ToTensor()])
        check(dataset, batched=False)


def own(image: Image.Image) -> Image.Image:
    assert image.mode == "L"
    return ImageOps.invert(image)


class Listed(Dataset[Any]):
    """A dataset of the user's own, which opens its images itself."""

    def __init__(self, folder: Path, transform: Any, mode: str, *, upright: bool = False) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))
        self.transform, self.mode, self.upright = transform, mode, upright

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        image: Any = Image.open(self.paths[index])
        image = ImageOps.exif_transpose(image) if self.upright else image
        return self.transform(image.convert(self.mode)), index


@pytest.mark.parametrize("deferred", [True, False], ids=str)
def test_datasets_that_open_gray_images_themselves(folder: Path, turned: Path, *, deferred: Any) -> None:
    transform = v1.Compose([*SIZED, v1.ToTensor(), v1.Normalize((0.5,), (0.25,))])
    to_gray = v1.Compose([v1.Resize((40, 40)), v1.Grayscale(), v1.ColorJitter((2, 2)), v1.PILToTensor()])
    datasets_of = [
        Listed(folder, transform, "L"),
        Listed(folder, to_gray, "RGB"),
        Listed(turned, transform, "L", upright=True),
    ]
    for dataset in datasets_of:
        loader: headrace.DataLoader[Any] = headrace.DataLoader(dataset, 7, num_workers=1, deferred=deferred)
        for found, expected in zip(loader, TorchDataLoader(dataset, 7), strict=True):
            assert found[0].shape[1] == 1
            assert all(map(torch.equal, found, expected))


def oriented(orientation: int, number: int, *, big: bool = False, format: str = "JPEG", **save: Any) -> bytes:
    """An image file that says how it is to be turned."""
    rng = np.random.default_rng(100 * number + orientation)
    width, height = (int(edge) for edge in rng.integers(1, 90, 2))
    exif = Image.Exif()
    exif.endian = ">" if big else "<"
    exif[0x010F], exif[0x0112], exif[0x0132] = "maker", orientation, "2026:11:22 12:00:00"
    file = io.BytesIO()
    image = picture(rng, width, height)
    (image.convert("L") if number % 3 == 0 else image).save(file, format, exif=exif, **save)
    return file.getvalue()


XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'


ODD_EXIF: dict[str, bytes] = {
    "plain": b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0",
    "cut in its last number": b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0\0\0",
    "empty": b"Exif\0\0",
    "no TIFF": b"Exif\0\0nothing that anyone can read",
    "cut in its header": b"Exif\0\0II*\0\x08",
    "no directory": b"Exif\0\0II*\0\x08\0\0\0",
    "a directory beyond the end": b"Exif\0\0II*\0\xff\0\0\0",
    "more entries than there are": b"Exif\0\0II*\0\x08\0\0\0\5\0\x12\1\3\0\1\0\0\0\6\0\0\0",
    "a long number": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\4\0\1\0\0\0\6\0\0\0\0\0\0\0",
    "two numbers": b"Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\2\0\0\0\6\0\3\0\0\0\0\0",
    "twice": b"Exif\0\0II*\0\x08\0\0\0\2\0"
    + b"\x12\1\3\0\1\0\0\0\6\0\0\0"
    + b"\x12\1\3\0\1\0\0\0\3\0\0\0"
    + bytes(4),
    "a header twice": b"Exif\0\0Exif\0\0II*\0\x08\0\0\0\1\0\x12\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0",
    "nothing in it": b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0",
    "another tag": b"Exif\0\0II*\0\x08\0\0\0\1\0\x13\1\3\0\1\0\0\0\6\0\0\0\0\0\0\0",
    "65535": b"Exif\0\0MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\xff\xff\0\0\0\0\0\0",
}


@pytest.fixture(scope="module")
def turned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("turned")
    for orientation in range(10):
        for number in range(4):
            write(root, f"{orientation}-{number}", oriented(orientation, number, big=number % 2 == 1))
        for format in native_formats()[1:]:
            write(root, f"{orientation}-{format}", oriented(orientation, 2, format=format))
    write(root, "none", jpeg(np.random.default_rng(5), "4:2:0", 60, 40))
    write(root, "cmyk", cmyk(np.random.default_rng(6), 33, 60, exif=ODD_EXIF["plain"]))
    return root


UPRIGHT: dict[str, Any] = {
    "the function": ImageOps.exif_transpose,
    "a Lambda": v1.Lambda(ImageOps.exif_transpose),
    "a lambda": v2.Lambda(lambda image: ImageOps.exif_transpose(image)),
}


@pytest.mark.parametrize("how", UPRIGHT)
def test_files_are_turned_where_the_transform_says_so(turned: Path, how: str) -> None:
    steps = [UPRIGHT[how], v1.CenterCrop((70, 30)), v1.PILToTensor()]
    loader = check(ImageFolder(str(turned), v1.Compose(steps)))
    assert "exif_transpose" in loader.explain() or how == "a lambda"
    check(
        ImageFolder(str(turned), v1.Compose([v1.Grayscale(), *steps[:1], v1.Resize((30, 20)), v1.ToTensor()]))
    )


def test_files_are_turned_nowhere_else(turned: Path) -> None:
    check(ImageFolder(str(turned), v1.Compose([v1.CenterCrop((70, 30)), v1.PILToTensor()])))


def test_random_crops_of_turned_files(turned: Path) -> None:
    steps = [ImageOps.exif_transpose, v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()]
    dataset = ImageFolder(str(turned), v1.Compose(steps))
    loader = headrace.DataLoader(dataset, batch_size=8, num_workers=2, seed=9)
    images = torch.cat([images for images, _ in loader])
    assert loader.stats().decoded_by["pillow"] == 0
    for index, image in enumerate(images):
        assert torch.equal(image, headrace.testing.replay(loader, index, 0)), dataset.samples[index]


def test_turning_after_other_steps_is_python_that_sees_the_exif_data(turned: Path) -> None:
    steps = [v1.Resize((20, 30)), ImageOps.exif_transpose, v1.CenterCrop(20), v1.ToTensor()]
    loader = check(ImageFolder(str(turned), v1.Compose(steps)), batched=False)
    assert "turns the image after other steps" in loader.explain()


def exif_of(image: Image.Image) -> torch.Tensor:
    exif = image.getexif()
    return torch.tensor([exif.get(0x0112, -1), len(exif), image.width, image.height])


def test_what_is_left_of_the_exif_data_is_what_pillow_leaves(turned: Path) -> None:
    for steps in ([ImageOps.exif_transpose], [v1.CenterCrop(1), v1.Grayscale()], [v1.Grayscale()]):
        check(ImageFolder(str(turned), v1.Compose([*steps, exif_of])), batched=False, deferred=False)


def with_segments(*payloads: bytes) -> bytes:
    data = jpeg(np.random.default_rng(7), "4:2:0", 50, 30)
    segments = (b"\xff\xe1" + (len(each) + 2).to_bytes(2, "big") + each for each in payloads)
    return data[:2] + b"".join(segments) + data[2:]


def png_with(*chunks: tuple[bytes, bytes]) -> bytes:
    return png(np.random.default_rng(7), 50, 30, before=chunks)


def webp_with(**metadata: Any) -> bytes:
    return saved("WEBP", width=50, height=30, **metadata)


PLAIN = ODD_EXIF["plain"].removeprefix(b"Exif\0\0")
OTHER_METADATA: dict[str, Callable[[], bytes]] = {
    "PNG, EXIF": lambda: png_with((b"eXIf", PLAIN)),
    "PNG, EXIF with a header": lambda: png_with((b"eXIf", ODD_EXIF["plain"])),
    "PNG, EXIF twice": lambda: png_with((b"eXIf", PLAIN), (b"eXIf", PLAIN)),
    "PNG, EXIF behind the pixels": lambda: png(np.random.default_rng(7), 50, 30, after=[(b"eXIf", PLAIN)]),
    "PNG, empty EXIF": lambda: png_with((b"eXIf", b"")),
    "PNG, XMP": lambda: png_with((b"iTXt", b"XML:com.adobe.xmp\0\0\0\0\0" + XMP)),
    "PNG, compressed XMP": lambda: png_with((b"iTXt", b"XML:com.adobe.xmp\0\1\0\0\0" + zlib.compress(XMP))),
    "PNG, XMP in another text": lambda: png_with((b"tEXt", b"XML:com.adobe.xmp\0" + XMP)),
    "PNG, a text called xmp": lambda: png_with((b"tEXt", b"xmp\0" + XMP)),
    "PNG, a text called exif": lambda: png_with((b"tEXt", b"exif\0" + PLAIN.hex().encode())),
    "PNG, a raw profile": lambda: png_with(
        (b"tEXt", b"Raw profile type exif\0\nexif\n0\n" + ODD_EXIF["plain"].hex().encode())
    ),
    "PNG, a compressed raw profile": lambda: png_with(
        (
            b"zTXt",
            b"Raw profile type exif\0\0" + zlib.compress(b"\nexif\n0\n" + ODD_EXIF["plain"].hex().encode()),
        )
    ),
    "WebP, EXIF": lambda: webp_with(exif=PLAIN),
    "WebP, EXIF with a header": lambda: webp_with(exif=ODD_EXIF["plain"]),
    "WebP, odd EXIF": lambda: webp_with(exif=b"no TIFF at all"),
    "WebP, XMP": lambda: webp_with(xmp=XMP),
    "WebP, XMP and EXIF": lambda: webp_with(xmp=XMP, exif=PLAIN),
}


@pytest.mark.parametrize("name", [*ODD_EXIF, *OTHER_METADATA, "XMP", "XMP and EXIF", "two segments"])
def test_odd_metadata_means_what_pillow_makes_of_it(tmp_path: Path, name: str) -> None:
    xmp = b"http://ns.adobe.com/xap/1.0/\0" + XMP
    plain = ODD_EXIF["another tag"]
    payloads = {"XMP": [xmp], "XMP and EXIF": [xmp, plain], "two segments": [plain, ODD_EXIF["65535"]]}
    other = OTHER_METADATA.get(name)
    segments = payloads.get(name, [ODD_EXIF.get(name, b"")])
    write(tmp_path, "a", with_segments(*segments) if other is None else other())
    dataset = ImageFolder(
        str(tmp_path), v1.Compose([ImageOps.exif_transpose, v1.CenterCrop(40), v1.ToTensor()])
    )
    check_first_sample(dataset)
