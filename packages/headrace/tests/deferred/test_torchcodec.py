"""What torchcodec's functions for image files give, in worker processes and as loaders of folders."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact.test_gray import ODD_EXIF, with_segments
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F  # noqa: N812  (torchvision's own name for it)

import headrace
import headrace.testing
from headrace import _torch_compat
from headrace.deferred.arrays import recipe_of
from headrace.transforms.on_tensors import torch_resizes_as_expected
from headrace.transforms.reading import TENSOR_FILTERS
from support.deferred_images import start_recording, stop_recording
from support.equal import same
from support.jpegs import JPEG_KINDS, cmyk, jpeg
from support.odd_files import GOOD, ODD_FILES

# With an older torch than its own it can't be loaded.
codec = pytest.importorskip("torchcodec.decoders", exc_type=(ImportError, OSError, RuntimeError))  # type: ignore[arg-type]
decode_image = codec.decode_image

XMP = b"http://ns.adobe.com/xap/1.0/\0<x/>"


def exif(orientation: int, *, big: bool = False) -> bytes:
    tags = Image.Exif()
    tags.endian = ">" if big else "<"
    tags[0x010F], tags[0x0132], tags[0x0112] = "maker", "2026:11:22 12:00:00", orientation
    return tags.tobytes()


TURNED = {number: with_segments(exif(number, big=number % 2 == 1)) for number in range(10)}
FILES: dict[str, bytes] = {
    **{kind: jpeg(np.random.default_rng(n), kind, 60 + n, 47) for n, kind in enumerate(JPEG_KINDS)},
    **{name: make() for name, make in ODD_FILES.items()},
    **{f"orientation {number}": data for number, data in TURNED.items()},
    **{f"EXIF: {name}": with_segments(segment) for name, segment in ODD_EXIF.items()},
    "EXIF after XMP": with_segments(XMP, exif(6)),
    "EXIF twice": with_segments(exif(3), exif(6)),
    "XMP after EXIF": with_segments(exif(6), XMP),
    "EXIF of another name": with_segments(b"other\0" + exif(6)[6:]),
    "YCCK": cmyk(np.random.default_rng(1), 33, 21, ycck=True),
    **{f"cut by {n}": GOOD[:-n] for n in (2, 3, 20, len(GOOD) // 2, len(GOOD) - 3)},
    "empty": b"",
}
WAYS: dict[str, Callable[[bytes, Path], Any]] = {
    "bytes": lambda data, _: decode_image(data),
    "a bytearray": lambda data, _: decode_image(bytearray(data)),
    "a str": lambda _, path: decode_image(str(path)),
    "a Path": lambda _, path: decode_image(path),
    "a tensor": lambda data, _: decode_image(as_tensor(data)),
    "every second value of a tensor": lambda data, _: decode_image(as_tensor(data).repeat_interleave(2)[::2]),
    "two axes": lambda data, _: decode_image(as_tensor(data)[None]),
    "unchanged": lambda data, _: decode_image(data, mode="unchanged"),
    "gray": lambda data, _: decode_image(data, mode="GRAY"),
    "with alpha": lambda data, _: decode_image(data, mode="RGB_ALPHA"),
    "its own mode": lambda data, _: decode_image(data, mode=codec.ImageReadMode.RGB),
    "no mode": lambda data, _: decode_image(data, mode="BLUE"),
    "of 16 bits": lambda data, _: decode_image(data, output_dtype=torch.uint16),
    "decode_jpeg of several": lambda data, _: codec.decode_jpeg([data, as_tensor(data)]),
}


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)


def outcome(way: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives, with the warnings before it; or its error."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result = way(*arguments)
        except Exception as error:
            result = type(error), str(error)
    return [(each.category, str(each.message)) for each in warned], result


@pytest.mark.parametrize("way", WAYS)
def test_files_are_decoded_as_torchcodec_decodes_them(way: str, tmp_path: Path) -> None:
    (tmp_path / "missing").mkdir()
    paths = {name: tmp_path / str(number) for number, name in enumerate(FILES)}
    for name, path in paths.items():
        path.write_bytes(FILES[name])
    paths["empty"].unlink()
    expected = {name: outcome(WAYS[way], data, paths[name]) for name, data in FILES.items()}
    start_recording()
    for name, data in FILES.items():
        assert same(outcome(WAYS[way], data, paths[name]), expected[name]), name


@given(
    st.sampled_from(range(10)), st.booleans(), st.lists(st.tuples(st.integers(4, 60), st.integers(0, 255)))
)
def test_exif_data_mean_what_they_mean_to_torchcodec(
    orientation: int, big: bool, changes: list[tuple[int, int]]
) -> None:
    segment = bytearray(exif(orientation, big=big))
    for at, value in changes:
        segment[at % len(segment)] = value
    data = with_segments(bytes(segment))
    stop_recording()
    expected = decode_image(data)
    start_recording()
    assert same(decode_image(data), expected)


@pytest.mark.parametrize("name", ["4:2:0", "4:4:4", *(f"orientation {number}" for number in range(1, 9))])
def test_steps_of_v2_on_its_tensors_are_recorded(name: str) -> None:
    transform = v2.Compose(
        [
            v2.RandomResizedCrop((20, 24), antialias=True),
            v2.RandomHorizontalFlip(0.5),
            v2.ColorJitter((0.5, 1.5)),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.4]),
        ]
    )

    def made() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return [transform(decode_image(FILES[name])) for _ in range(5)]

    expected = made()
    start_recording()
    ours = made()
    resizes = torch_resizes_as_expected(TENSOR_FILTERS[v2.InterpolationMode.BILINEAR])
    late = resizes and name not in {f"orientation {number}" for number in range(5, 9)}
    assert all((recipe_of(each) is not None) == late for each in ours)
    assert same(ours, expected)


def test_several_threads_decode_at_once() -> None:
    names = [name for name in FILES if name.startswith(("4:", "gray", "orientation", "png"))] * 8
    expected = [decode_image(FILES[name]) for name in names]
    start_recording()
    with ThreadPoolExecutor(8) as pool:
        assert same(list(pool.map(lambda name: decode_image(FILES[name]), names)), expected)


def test_nothing_but_torchcodecs_own_op_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    images = decode_image.__globals__
    own = images["_decode_jpeg"]
    start_recording()
    assert images["_decode_jpeg"] is not own
    stop_recording()
    assert images["_decode_jpeg"] is own
    monkeypatch.setitem(images, "_decode_jpeg", len)
    start_recording()
    assert images["_decode_jpeg"] is len
    stop_recording()
    monkeypatch.setitem(images, "_decode_jpeg", own)
    monkeypatch.delitem(sys.modules, _torch_compat.TORCHCODECS_IMAGES)  # as if it wasn't imported
    start_recording()
    assert images["_decode_jpeg"] is own


# --- in loaders --------------------------------------------------------------------------------------------

CROPPED = v2.Compose([v2.CenterCrop((40, 36)), v2.ToDtype(torch.float32, scale=True)])
RESIZED = v2.Compose(
    [v2.RandomResizedCrop(32, antialias=True), v2.RandomHorizontalFlip(), CROPPED.transforms[1]]
)


def in_two_steps(path: str) -> torch.Tensor:
    image = decode_image(path, mode="RGB")
    return image  # noqa: RET504


READERS: dict[str, Callable[[Any], Any]] = {
    "itself": decode_image,
    "a lambda": lambda path: codec.decode_image(path),
    "in two steps": in_two_steps,
    "a partial": functools.partial(decode_image, mode="RGB"),
}
OTHERS: dict[str, Callable[[Any], Any]] = {
    "gray": lambda path: decode_image(path, mode="GRAY"),
    "of 16 bits": functools.partial(decode_image, output_dtype=torch.uint16),
    "changed": lambda path: decode_image(path) // 2,
    "another function": codec.decode_jpeg,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that torchcodec makes RGB images of, all called JPEGs."""
    root = tmp_path_factory.mktemp("files")
    (root / "class0").mkdir()
    left_out = ("empty", "gif", "1×1", "very wide", "very tall", "8×8", "bmp", "tiff")
    for number, (name, data) in enumerate(FILES.items()):
        _, image = outcome(decode_image, data)
        if isinstance(image, torch.Tensor) and name not in left_out:
            (root / "class0" / f"{number:03}.jpg").write_bytes(data)
    return root


def check(dataset: Any, **options: Any) -> headrace.DataLoader[Any]:
    loader = headrace.DataLoader(dataset, 5, num_workers=1, **options)
    torch.manual_seed(4)
    ours = list(loader)
    torch.manual_seed(4)
    assert same(ours, list(DataLoader(dataset, 5, num_workers=1)))
    return loader


@pytest.mark.parametrize("name", READERS)
def test_a_folder_read_by_it_runs_natively(folder: Path, name: str) -> None:
    loader = check(ImageFolder(str(folder), CROPPED, loader=READERS[name]))
    assert loader.plan().native is not None
    assert "tensors of them, turned as EXIF says" in " ".join(loader.explain().split())
    assert loader.stats().decoded_by["headrace"] > 20


@pytest.mark.skipif(
    not torch_resizes_as_expected(TENSOR_FILTERS[v2.InterpolationMode.BILINEAR]),
    reason="this torch resizes otherwise",
)
def test_random_crops_of_turned_files_are_torchs_own_arithmetic(folder: Path) -> None:
    dataset = ImageFolder(str(folder), RESIZED, loader=decode_image)
    loader = headrace.DataLoader(dataset, 6, num_workers=2, seed=4)
    assert loader.plan().native is not None
    for index, image in enumerate(torch.cat([images for images, _ in loader])):
        (_, box), (_, (flipped,)) = headrace.testing.draws(loader, index, 0)[:2]
        top, left, height, width = (int(edge) for edge in box[:4])
        expected = F.resized_crop(decode_image(dataset.samples[index][0]), top, left, height, width, [32, 32])
        expected = F.to_dtype(F.horizontal_flip(expected) if flipped else expected, torch.float32, scale=True)
        assert torch.equal(image, expected), dataset.samples[index]


@pytest.mark.parametrize("name", OTHERS)
def test_other_readers_of_a_folder_run_as_they_are(folder: Path, name: str) -> None:
    loader = headrace.DataLoader(ImageFolder(str(folder), CROPPED, loader=OTHERS[name]), 5)
    assert loader.plan().native is None


class Decoded(Dataset[Any]):
    """Files read by a dataset of one's own."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.paths, self.transform = sorted(folder.rglob("*.jpg")), transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(decode_image(self.paths[index])), index


def test_a_dataset_of_ones_own_gives_the_same_batches(folder: Path) -> None:
    loader = check(Decoded(folder, RESIZED))
    assert "native code decodes" in loader.explain()
