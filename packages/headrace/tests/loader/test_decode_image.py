"""Folders whose loader is `decode_image`: torch's batches, natively where torchvision's pixels are known."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchvision.io
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision.datasets import ImageFolder
from torchvision.io import ImageReadMode, read_image
from torchvision.transforms import v2

import headrace
import headrace.testing
from headrace.decoding import by_torchvision, decodes_as_pillow
from headrace.transforms.on_tensors import torch_resizes_as_expected
from headrace.transforms.reading import TENSOR_FILTERS
from support.jpegs import cmyk, jpeg, picture
from support.odd_files import ODD_FILES

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*image decoding.*"),
    pytest.mark.filterwarnings("ignore:.*deprecated.*"),
    pytest.mark.skipif(
        not decodes_as_pillow(by_torchvision), reason="this torchvision has another libjpeg than Pillow"
    ),
]
native_resize = pytest.mark.skipif(
    not torch_resizes_as_expected(TENSOR_FILTERS[v2.InterpolationMode.BILINEAR]),
    reason="this torch resizes otherwise",
)

CROPPED = v2.Compose([v2.CenterCrop((40, 36)), v2.ToDtype(torch.float32, scale=True)])


def by_keyword(path: str) -> torch.Tensor:
    return torchvision.io.decode_image(path, mode="RGB")


def in_two_steps(path: str) -> torch.Tensor:
    image = torchvision.io.decode_image(path, mode="RGB")
    return image  # noqa: RET504


def by_name(path: str) -> torch.Tensor:
    return headrace.decode_image(path, "RGB")


READERS: dict[str, Callable[[Any], Any]] = {
    "by keyword": by_keyword,
    "in two steps": in_two_steps,
    "headrace's": by_name,
    "read_image": lambda path: read_image(path, ImageReadMode.RGB),
    "partial": functools.partial(headrace.decode_image, mode="RGB"),
    "torchvision's partial": functools.partial(torchvision.io.decode_image, mode=ImageReadMode.RGB),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "unchanged": headrace.decode_image,
    "gray": functools.partial(headrace.decode_image, mode="GRAY"),
    "turned": lambda path: torchvision.io.decode_image(path, "RGB", True),
    "changed": lambda path: torchvision.io.decode_image(path, "RGB") // 2,
    "another function": lambda path: torchvision.io.decode_jpeg(path, "RGB"),
}


def write(folder: Path, name: str, data: bytes) -> None:
    (folder / "class0").mkdir(parents=True, exist_ok=True)
    (folder / "class0" / name).write_bytes(data)


def progressive(rng: np.random.Generator) -> bytes:
    file = io.BytesIO()
    picture(rng, 70, 50).save(file, "JPEG", progressive=True)
    return file.getvalue()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs of all subsamplings, gray, progressive and CMYK ones, and a PNG that is called a JPEG."""
    root = tmp_path_factory.mktemp("files")
    rng = np.random.default_rng(3)
    for number in range(18):
        sampling = ("4:4:4", "4:2:2", "4:2:0")[number % 3]
        width, height = (int(edge) for edge in rng.integers(45, 120, 2))
        write(root, f"{number:02}.jpg", jpeg(rng, sampling, width, height))
    file = io.BytesIO()
    picture(rng, 60, 61).convert("L").save(file, "JPEG")
    write(root, "gray.jpg", file.getvalue())
    write(root, "progressive.jpg", progressive(rng))
    write(root, "cmyk.jpg", cmyk(rng, 50, 55))
    write(root, "png.jpg", ODD_FILES["png"]())
    return root


def check(dataset: Any, **options: Any) -> headrace.DataLoader[Any]:
    loader = headrace.DataLoader(dataset, 5, num_workers=1, **options)
    for found, expected in zip(loader, TorchDataLoader(dataset, 5), strict=True):
        assert all(map(torch.equal, found, expected))
        assert found[0].dtype == expected[0].dtype
    return loader


@pytest.mark.parametrize("name", READERS)
def test_batches_equal_torchs(folder: Path, name: str) -> None:
    loader = check(ImageFolder(str(folder), CROPPED, loader=READERS[name]))
    assert loader.plan().native is not None
    decoded = loader.stats().decoded_by
    assert (decoded["headrace"], decoded["pillow"]) == (19, 3)  # torchvision has its own CMYK
    assert "tensors" in loader.explain()


@native_resize
def test_random_crops_are_torchs_own_arithmetic(folder: Path) -> None:
    steps = [v2.RandomResizedCrop(32, antialias=True), v2.RandomHorizontalFlip(), CROPPED.transforms[1]]
    loader = headrace.DataLoader(
        ImageFolder(str(folder), v2.Compose(steps), loader=by_keyword), 6, num_workers=2, seed=4
    )
    assert loader.plan().native is not None
    for index, image in enumerate(torch.cat([images for images, _ in loader])):
        assert torch.equal(image, headrace.testing.replay(loader, index, 0)), index


@native_resize
def test_resized_batches_equal_torchs(folder: Path) -> None:
    steps = [
        v2.Resize((30, 44), antialias=True),
        v2.ColorJitter((2, 2)),
        v2.ToDtype(torch.float32, scale=True),
    ]
    loader = check(ImageFolder(str(folder), v2.Compose(steps), loader=by_keyword))
    assert loader.plan().native is not None


def test_without_a_transform_or_with_parts_of_a_dataset(folder: Path) -> None:
    dataset = ImageFolder(str(folder), CROPPED, loader=by_keyword)
    check(Subset(dataset, [3, 1, 20, 1]))
    loader = check(ConcatDataset([dataset, dataset]))
    assert loader.plan().native is not None
    images = ImageFolder(str(folder), v2.Compose([v2.PILToTensor(), CROPPED]))
    mixed: headrace.DataLoader[Any] = headrace.DataLoader(ConcatDataset([dataset, images]), 5)
    assert mixed.plan().native is None
    assert "several transforms" in mixed.explain() or "others as images" in mixed.explain()


@pytest.mark.parametrize("name", OTHERS)
def test_other_readers_run_as_they_are(folder: Path, name: str) -> None:
    loader = headrace.DataLoader(ImageFolder(str(folder), CROPPED, loader=OTHERS[name]), 5)
    assert loader.plan().native is None


def test_what_native_code_cannot_finish_runs_as_it_is(folder: Path) -> None:
    seen = []

    def look(image: torch.Tensor) -> torch.Tensor:
        seen.append(type(image))
        return image

    dataset = ImageFolder(str(folder), v2.Compose([v2.CenterCrop(40), v2.Lambda(look)]), loader=by_keyword)
    loader = headrace.DataLoader(dataset, 5)
    assert loader.plan().native is None
    assert all(map(torch.equal, next(iter(loader)), next(iter(TorchDataLoader(dataset, 5)))))
    assert set(seen) == {torch.Tensor}


def test_folders_with_other_formats_run_as_they_are(tmp_path: Path, folder: Path) -> None:
    write(tmp_path, "a.jpg", (folder / "class0" / "00.jpg").read_bytes())
    write(tmp_path, "b.png", ODD_FILES["png of 16 bits"]())
    loader = headrace.DataLoader(ImageFolder(str(tmp_path), CROPPED, loader=by_keyword), 1)
    assert loader.plan().native is None
    assert "1 files that aren't JPEGs" in " ".join(loader.explain().split())


def test_a_tensor_of_another_kind_is_an_error_that_says_so(tmp_path: Path) -> None:
    write(tmp_path, "a.jpg", ODD_FILES["png of 16 bits"]())
    loader = headrace.DataLoader(ImageFolder(str(tmp_path), CROPPED, loader=by_keyword), 1)
    with pytest.raises(headrace.SampleError, match="uint16"):
        next(iter(loader))


@pytest.mark.parametrize("name", ODD_FILES)
def test_every_file_is_what_torchvision_makes_of_it(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(ODD_FILES[name]())
    data = torch.frombuffer(bytearray(path.read_bytes() or b"\0"), dtype=torch.uint8)
    for mode in ("RGB", ImageReadMode.RGB, ImageReadMode.UNCHANGED, "GRAY"):
        for input in (str(path), path, data):
            outcomes = []
            for function in (headrace.decode_image, torchvision.io.decode_image):
                try:
                    outcomes.append(function(input, mode))  # type: ignore[operator]
                except Exception as error:
                    outcomes.append(error)
            ours, theirs = outcomes
            if isinstance(theirs, Exception):
                assert type(ours) is type(theirs)
                assert str(ours) == str(theirs)
            else:
                assert torch.equal(ours, theirs)
                assert (ours.dtype, ours.stride(), type(ours)) == (
                    theirs.dtype,
                    theirs.stride(),
                    type(theirs),
                )


def test_inputs_of_other_kinds_are_torchvisions_to_refuse(folder: Path) -> None:
    path = folder / "class0" / "00.jpg"
    data = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
    with open(path, "rb") as file:
        for input in (file.fileno(), bytes(path), data[None], data.float(), data[:2], None):
            with pytest.raises(Exception) as theirs:  # noqa: PT011
                torchvision.io.decode_image(input, "RGB")
            with pytest.raises(type(theirs.value)) as ours:
                headrace.decode_image(input, "RGB")  # type: ignore[arg-type]
            assert str(ours.value) == str(theirs.value)


def test_reading_warns_of_nothing_by_itself(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = headrace.decode_image(str(folder / "class0" / "00.jpg"), "RGB")
    whole = np.asarray(Image.open(folder / "class0" / "00.jpg").convert("RGB"))
    assert np.array_equal(image.permute(1, 2, 0).numpy(), whole)
