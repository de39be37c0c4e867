"""Functions of Pillow and torchvision that a program has replaced itself take effect as in torch's workers.

A patch counts its calls. Each sample says how many there were while it was made.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.transforms import functional as F  # noqa: N812  (torchvision's own name for it)
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F2  # noqa: N812
from torchvision.transforms.v2.functional import _utils

import headrace
from headrace import deferred
from headrace.deferred.images import METHODS
from headrace.transforms.patches import IMAGES, RECORDING, TABLE, Function, find_patched, stopped_by
from support.deferred_images import is_deferred, start_recording, stop_recording
from support.equal import same
from support.jpegs import image_folder
from support.python import run_python
from support.sampling import one_in

calls = 0


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """As people write a patch: a decorator that keeps the name of what it wraps."""

    @functools.wraps(function)
    def patch(*args: Any, **kwargs: Any) -> Any:
        global calls
        calls += 1
        return function(*args, **kwargs)

    return patch


def patch_of(function: Function) -> Any:
    """What a program may put in the function's place."""
    value = function.found()
    if value is None:  # added to a class that inherits it
        value = getattr(function.owner, function.key)
    if isinstance(value, property):
        return property(counted(value.fget), value.fset)  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return counted(value[0]), *value[1:]
    if isinstance(value, type):
        called = "__call__" if callable(getattr(value, "__call__", None)) else "forward"  # noqa: B004
        return type(f"Own{value.__name__}", (value,), {called: counted(getattr(value, called))})
    patch = counted(value)
    if function.owner is F2 and value in _utils._KERNEL_REGISTRY:
        _utils._KERNEL_REGISTRY[patch] = _utils._KERNEL_REGISTRY[value]
    return patch


def put(monkeypatch: pytest.MonkeyPatch, function: Function, patch: Any) -> None:
    if isinstance(function.owner, Mapping):
        monkeypatch.setitem(function.owner, function.key, patch)  # type: ignore[arg-type]
    else:
        monkeypatch.setattr(function.owner, function.key, patch, raising=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), 6)


def use_pillow(image: Image.Image) -> None:
    """Calls all that deferred images stand for."""
    with image.copy() as held:
        held.load()
    small = image.crop((1, 2, 31, 30)).resize((20, 21)).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    small = small.convert("L").convert("RGB").rotate(10).rotate(90).filter(ImageFilter.GaussianBlur(1))
    small = small.point(list(range(256)) * 3).reduce(2)
    small.thumbnail((5, 5))
    for change in (ImageOps.autocontrast, ImageOps.equalize, ImageOps.exif_transpose, ImageOps.invert):
        change(small)
    ImageOps.solarize(ImageOps.posterize(small, 3), 9)
    assert small == small.copy()


COLORS = [v1.ColorJitter(0.4, 0.4, 0.4, 0.1), v1.RandomAdjustSharpness(0.5, 1.0), v1.RandomEqualize(1.0)]
V1 = v1.Compose(
    [
        v1.Resize(40),
        v1.RandomRotation(9),
        v1.RandomAffine(9, (0.1, 0.1)),
        v1.RandomPerspective(p=1.0),
        v1.Pad(3),
        v1.CenterCrop(36),
        *COLORS,
        v1.RandomAutocontrast(1.0),
        v1.RandomInvert(1.0),
        v1.RandomPosterize(3, 1.0),
        v1.RandomSolarize(99, 1.0),
        v1.GaussianBlur(3),
        v1.RandomHorizontalFlip(1.0),
        v1.RandomVerticalFlip(1.0),
        v1.RandomResizedCrop(20),
        v1.Grayscale(3),
        v1.ToTensor(),
        v1.Normalize([0.5] * 3, [0.5] * 3),
        v1.RandomErasing(1.0),
    ]
)


V2 = v2.Compose(
    [
        v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
        v2.RandomChannelPermutation(),
        v2.RandomAdjustSharpness(0.5, 1.0),
        v2.RandomAutocontrast(1.0),
        v2.RandomEqualize(1.0),
        v2.RandomInvert(1.0),
        v2.RandomPosterize(3, 1.0),
        v2.RandomSolarize(99, 1.0),
        v2.GaussianBlur(3),
        v2.RandomHorizontalFlip(1.0),
        v2.RandomVerticalFlip(1.0),
        v2.RandomAffine(9),
        v2.RandomPerspective(p=1.0),
        v2.RandomRotation(9),
        v2.Pad(2),
        v2.Resize(30),
        v2.CenterCrop(28),
        v2.RandomResizedCrop(24),
        v2.Grayscale(3),
        v2.ToImage(),
        v2.RandomResizedCrop(22),
        v2.RandomHorizontalFlip(1.0),
        v2.ColorJitter(0.4),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize([0.5] * 3, [0.5] * 3),
        v2.RandomErasing(1.0),
    ]
)


def converted(image: Image.Image) -> torch.Tensor:
    return F.convert_image_dtype(F.pil_to_tensor(image), torch.float32).sum()


class Samples(Dataset[Any]):
    """Opens images, and uses all that is in the table."""

    def __init__(self, folder: Path) -> None:
        self.paths = sorted(folder.rglob("*.jpg"))[:3]
        rng = np.random.default_rng(0)
        self.others = [io.BytesIO(), io.BytesIO()]
        for file, kind in zip(self.others, ("PNG", "WEBP"), strict=True):
            Image.fromarray(rng.integers(0, 256, (9, 8, 3), np.uint8)).save(file, kind)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        before = calls
        torch.manual_seed(index)
        made = [V1(Image.open(self.paths[index]).convert("RGB"))]
        image = Image.open(self.paths[index]).convert("RGB")
        use_pillow(image)
        for file in self.others:
            made.append(F.to_tensor(Image.open(file)))
        made.append(V2(image))
        made += [F.five_crop(image, 8)[2], F.ten_crop(image, 8)[3], converted(image)]
        return [each if isinstance(each, torch.Tensor) else np.array(each) for each in made], calls - before


ROWS = {
    function.text: function
    for function in TABLE
    if function.found() is not None or hasattr(function.owner, str(function.key))
}
# Those that programs are known to replace: all of them are called for these samples.
OFTEN = (
    *(f"PIL.Image.Image.{name}" for name in ("convert", "copy", "crop", "filter", "load", "point", "resize")),
    *(f"PIL.Image.Image.{name}" for name in ("rotate", "tobytes", "transform", "transpose")),
    *("PIL.Image.open", "PIL.ImageFile.ImageFile.load", "PIL.JpegImagePlugin.JpegImageFile.load"),
    *("PIL.Image.OPEN['JPEG']", "PIL.ImageOps.equalize", "PIL.ImageEnhance._Enhance.enhance"),
    "torchvision.transforms.transforms.Compose.__call__",
    "torchvision.transforms.transforms.RandomResizedCrop.__call__",
    "torchvision.transforms.v2._container.Compose.forward",
    "torchvision.transforms.v2.functional.adjust_brightness for PIL.Image.Image",
    *(f"torchvision.transforms._functional_pil.{name}" for name in ("adjust_brightness", "resize")),
    *(f"torchvision.transforms.functional.{name}" for name in ("hflip", "resize", "to_tensor")),
)
OTHERS = [name for name in ROWS if name not in OFTEN]


def batches(loader: type[DataLoader[Any]], dataset: Any) -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    made = loader(dataset, 2, num_workers=1, collate_fn=list)
    return list(made), made


def explained(loader: Any) -> str:
    """As one line."""
    return " ".join(loader.explain().split())


@pytest.mark.parametrize("name", [*OFTEN, *one_in(40, OTHERS)])
def test_a_replaced_function_takes_effect_in_workers(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, ROWS[name], patch_of(ROWS[name]))
    wanted, _ = batches(DataLoader, Samples(folder))
    assert name not in OFTEN or all(count > 0 for batch in wanted for _, count in batch)
    found, loader = batches(headrace.DataLoader, Samples(folder))
    assert same(found, wanted)
    assert f"{name} is " in explained(loader)


@pytest.mark.parametrize("name", ROWS)
def test_nothing_is_replaced_that_stands_for_a_replaced_function(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, ROWS[name], patch_of(ROWS[name]))
    assert name in [function.text for function, _ in find_patched()]
    before, (path, *_) = [vars(v1.Compose).copy(), vars(v2.Compose).copy()], folder.rglob("*.jpg")
    start_recording()
    with Image.open(path) as image:
        image.load()
        later = is_deferred(image)
    during = [vars(v1.Compose).copy(), vars(v2.Compose).copy()]
    stop_recording()
    stopped = stopped_by(find_patched())
    assert later == (IMAGES not in stopped)
    assert (during == before) == (RECORDING in stopped)


def calls_so_far(label: int) -> int:
    """A transform of labels that tells of the calls for the image before it."""
    global calls
    counted, calls = calls, 0
    return 1000 * label + counted


def test_a_folder_runs_natively_where_nothing_was_replaced(folder: Path) -> None:
    loader = headrace.DataLoader(datasets.ImageFolder(str(folder), FOLDERS), 2, num_workers=1)
    assert loader.explain().startswith("plan: native")


FOLDERS = v1.Compose(
    [
        v1.Resize((40, 40)),
        v1.RandomResizedCrop(24),
        v1.RandomHorizontalFlip(1.0),
        v1.ColorJitter((0.5, 0.5)),
        v1.RandomEqualize(1.0),
        v1.RandomRotation((9, 9)),
        v1.ToTensor(),
    ]
)
# Of a plan, each that ImageFolder and these transforms call.
OF_FOLDERS = (
    *(f"PIL.Image.Image.{name}" for name in ("convert", "crop", "load", "resize", "rotate", "transform")),
    *("PIL.Image.open", "PIL.ImageFile.ImageFile.load", "PIL.JpegImagePlugin.JpegImageFile.load"),
    *("PIL.Image.OPEN['JPEG']", "PIL.ImageOps.equalize", "PIL.ImageEnhance._Enhance.enhance"),
    "torchvision.datasets.folder.pil_loader",
    *(f"torchvision.transforms._functional_pil.{name}" for name in ("adjust_brightness", "resize", "hflip")),
    *(f"torchvision.transforms.functional.{name}" for name in ("hflip", "resize", "to_tensor")),
)


@pytest.mark.parametrize("name", OF_FOLDERS)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_replaced_function_takes_effect_in_folders(
    name: str, workers: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, ROWS[name], patch_of(ROWS[name]))
    dataset = datasets.ImageFolder(str(folder), FOLDERS, calls_so_far)

    def made(kind: type[DataLoader[Any]]) -> tuple[list[Any], Any]:
        global calls
        torch.manual_seed(0)
        loader = kind(dataset, 2, num_workers=workers)
        iterator = iter(loader)
        calls = 0
        return list(iterator), loader

    wanted, _ = made(DataLoader)
    assert all(int(label) % 1000 > 0 for _, labels in wanted[1:] for label in labels)
    found, loader = made(headrace.DataLoader)
    assert same(found[1:], wanted[1:])
    assert f"{name} is " in explained(loader)


@pytest.mark.parametrize("module", ["v1", "v2"])
def test_a_replaced_call_of_a_compose_takes_effect_in_folders(
    module: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, name = (v1.Compose, "__call__") if module == "v1" else (v2.Compose, "forward")
    original = getattr(kind, name)

    def inverted(self: Any, image: Any) -> Any:
        return -original(self, image)

    monkeypatch.setattr(kind, name, inverted)
    dataset = datasets.ImageFolder(str(folder), kind([v1.Resize((24, 24)), v1.ToTensor()]))
    ours = headrace.DataLoader(dataset, 2, num_workers=1)
    assert same(list(ours), list(DataLoader(dataset, 2)))
    assert "inverted (" in explained(ours)


class OwnJpeg(JpegImageFile):
    """A plug-in of the user's."""

    def convert(self, *args: Any, **kwargs: Any) -> Image.Image:
        return ImageOps.invert(super().convert(*args, **kwargs))


@pytest.mark.parametrize("kind", ["dataset", "folder"])
def test_a_plug_in_of_the_users_reads_files(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Image.OPEN, "JPEG", Image.OPEN["JPEG"])
    Image.register_open("JPEG", OwnJpeg, Image.OPEN["JPEG"][1])
    dataset: Any = Samples(folder)
    if kind == "folder":
        dataset = datasets.ImageFolder(str(folder), v1.Compose([v1.Resize((24, 24)), v1.ToTensor()]))
    wanted, _ = batches(DataLoader, dataset)
    found, loader = batches(headrace.DataLoader, dataset)
    assert same(found, wanted)
    assert "PIL.Image.OPEN['JPEG'] is OwnJpeg (" in explained(loader)


def test_a_plug_in_registered_later_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Image.OPEN, "JPEG", Image.OPEN["JPEG"])
    deferred.install()
    Image.register_open("JPEG", OwnJpeg, Image.OPEN["JPEG"][1])
    deferred.uninstall()
    assert Image.OPEN["JPEG"][0] is OwnJpeg


def patch_crop(_: int) -> None:
    Image.Image.crop = counted(Image.Image.crop)  # type: ignore[method-assign]


def test_functions_that_worker_init_fn_replaces_take_effect(folder: Path) -> None:
    def made(loader: type[DataLoader[Any]]) -> list[Any]:
        torch.manual_seed(0)
        return list(loader(Samples(folder), 2, num_workers=1, collate_fn=list, worker_init_fn=patch_crop))

    wanted = made(DataLoader)
    assert all(count > 0 for batch in wanted for _, count in batch)
    assert same(made(headrace.DataLoader), wanted)


def test_a_function_in_place_of_another_of_the_library_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(F, "hflip", F.vflip)
    monkeypatch.setattr(JpegImageFile, "load", Image.Image.load, raising=False)
    found = {function.text for function, _ in find_patched()}
    assert found == {"torchvision.transforms.functional.hflip", "PIL.JpegImagePlugin.JpegImageFile.load"}


LIBRARIES = (
    "timm.data",
    "transformers.image_utils",
    "datasets",
    "kornia",
    "albumentations",
)


def test_libraries_that_are_only_imported_replace_nothing() -> None:
    program = f"""
import importlib, contextlib
for name in {LIBRARIES}:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
from headrace.transforms.patches import find_patched
assert not find_patched(), find_patched()
"""
    run_python(program, fresh=True, check=True)


def test_the_table_has_all_methods_that_record() -> None:
    for owner, name, _ in METHODS:
        assert f"{owner.__module__}.{owner.__qualname__}.{name}" in ROWS


def test_the_documentation_names_what_is_replaced() -> None:
    page = (Path(__file__).parents[4] / "docs" / "deferred-images.md").read_text()
    for name in {function.key for function in TABLE if function.stops == IMAGES} - set(dir(object)):
        assert name.startswith("_") or f"`{name}`" in page, name
