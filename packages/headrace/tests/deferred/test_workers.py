"""User datasets that open images themselves: the same batches with and without deferred images."""

from __future__ import annotations

import io
import itertools
import random
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torch.utils.data import ConcatDataset, Dataset
from torchvision import datasets
from torchvision import transforms as v1
from torchvision.io import decode_image
from torchvision.transforms import v2

import headrace
from headrace.decoding import by_torchvision, decodes_as_pillow
from support.equal import same
from support.jpegs import image_folder

AUGMENT = v1.Compose([v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.ToTensor()])


class Listed(Dataset[Any]):
    """Paths in a list; the transform is the test's."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.paths = sorted(str(path) for path in folder.rglob("*.jpg"))
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        with open(self.paths[index], "rb") as file:
            image = Image.open(file).convert("RGB")
        return self.transform(image), index


class Kinds(Dataset[Any]):
    """Says what `Image.open` gives in the process that makes the sample."""

    def __init__(self, folder: Path) -> None:
        self.path = sorted(folder.rglob("*.jpg"))[0]

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> str:
        with Image.open(self.path) as image:
            return type(image).__name__


def drawn_by_hand(image: Image.Image) -> Any:
    """Draws from all three generators, and uses Pillow directly."""
    angle = random.uniform(-20, 20)
    size = int(np.random.randint(20, 30))
    image = image.resize((size + 20, size + 20), Image.Resampling.BICUBIC).rotate(angle)
    left = int(torch.randint(0, 10, ()))
    image = image.crop((left, left, left + 16, left + 16)).filter(ImageFilter.GaussianBlur(1))
    return np.asarray(image, dtype=np.float32) / 255


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), 24)


def batches(dataset: Any, **options: Any) -> list[Any]:
    loader = headrace.DataLoader(dataset, 5, shuffle=True, seed=3, **options)
    return list(loader)


@pytest.mark.parametrize(
    "options", [{"num_workers": 2}, {"num_workers": 1, "multiprocessing_context": "forkserver"}], ids=str
)
def test_workers_make_the_batches_of_the_caller(options: dict[str, Any], folder: Path) -> None:
    dataset = Listed(folder, AUGMENT)
    assert same(batches(dataset, **options), batches(dataset, num_workers=0))


def test_batches_of_hundreds_of_images_are_the_same(folder: Path) -> None:
    dataset: ConcatDataset[Any] = ConcatDataset([Listed(folder, AUGMENT)] * 15)
    deferred, as_written = (
        list(headrace.DataLoader(dataset, 360, seed=3, num_workers=1, deferred=deferred))
        for deferred in (True, False)
    )
    assert same(deferred, as_written)


def test_images_are_lazy_in_worker_processes_only(folder: Path) -> None:
    def kinds(**options: Any) -> set[str]:
        return {kind for batch in headrace.DataLoader(Kinds(folder), 2, **options) for kind in batch}

    assert kinds(num_workers=2) == {"JpegImageFile"}
    assert kinds(num_workers=2, deferred=False) == {"JpegImageFile"}
    assert kinds(num_workers=0) == {"JpegImageFile"}
    assert kinds(num_workers=2, worker_kind="thread") == {"JpegImageFile"}


def test_damaged_files_are_reported_as_without_lazy_images(folder: Path, tmp_path: Path) -> None:
    for i, path in enumerate(sorted(folder.rglob("*.jpg"))[:6]):
        data = path.read_bytes()
        (tmp_path / f"{i}.jpg").write_bytes(data[: len(data) // 2] if i == 3 else data)
    messages = []
    for lazy_images in (True, False):
        loader = headrace.DataLoader(Listed(tmp_path, AUGMENT), 2, num_workers=2, deferred=lazy_images)
        with pytest.raises(OSError, match="truncated") as caught:
            list(loader)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    skipping = headrace.DataLoader(Listed(tmp_path, AUGMENT), 2, num_workers=2, on_error="skip")
    assert [labels.tolist() for _, labels in skipping] == [[0, 1], [2], [4, 5]]


NONE_OPENED = "images: the dataset opened none that native code decodes, in the first batch of each worker"


def images_line(loader: Any) -> str:
    return next(line for line in loader.explain().splitlines() if line.startswith("images: "))


def test_explain_says_that_pillow_came_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: Any = range(4)
    loader = headrace.DataLoader(numbers, 2, num_workers=1)
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "PIL.Image")
        list(loader)
    assert "PIL.Image had not been imported when the worker processes started" in images_line(loader)


def test_explain_says_what_native_code_did_for_the_first_samples_of_a_dataset(folder: Path) -> None:
    def measured(transform: Any, **options: Any) -> str:
        loader = headrace.DataLoader(Listed(folder, transform), 4, num_workers=2, **options)
        assert images_line(loader) == "images: not known yet; call explain() again after the first batch"
        list(loader)
        return images_line(loader)

    assert re.fullmatch(
        r"images: native code decodes and transforms them, and writes the tensors \([67] images, 8 tensors in"
        r" the first batch of each worker\)",  # the others are progressive
        measured(AUGMENT),
    )
    assert measured(drawn_by_hand, collate_fn=list).startswith(
        "images: native code decodes them; Python makes the tensors of their pixels"
    )
    text = headrace.DataLoader(Texts(), 4, num_workers=1)
    list(text)
    assert images_line(text) == NONE_OPENED


def test_the_argument_has_its_former_name_as_well(folder: Path) -> None:
    with pytest.warns(FutureWarning, match="argument lazy is called deferred now") as warned:
        loader = headrace.DataLoader(Listed(folder, AUGMENT), lazy=False)  # type: ignore[call-arg]
    assert warned[0].filename == __file__
    assert not loader.deferred


def test_explain_says_why_images_are_not_deferred(folder: Path) -> None:
    dataset = Listed(folder, AUGMENT)
    switched_off = images_line(headrace.DataLoader(dataset, deferred=False, num_workers=2))
    assert switched_off == "images: Pillow decodes those that the dataset opens, because of deferred=False"
    not_here = (
        "images: Pillow decodes those that the dataset opens; native code does so in worker processes"
        " (num_workers=1 or more)"
    )
    assert images_line(headrace.DataLoader(dataset, num_workers=0)) == not_here
    assert images_line(headrace.DataLoader(dataset, num_workers=2, worker_kind="thread")) == not_here
    native = headrace.DataLoader(datasets.ImageFolder(str(folder), AUGMENT), num_workers=2)
    assert "images: " not in native.explain()


class AddNoise:
    """A step between crop and tensor that looks at pixels."""

    def __call__(self, image: Image.Image) -> Image.Image:
        return Image.fromarray(np.asarray(image) ^ 1)


class Halve(torch.nn.Module):
    """A step on tensors."""

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor / 2


def count_pixels(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor * scale


class Invert(v2.Transform):
    """As v2 wants them written."""

    def transform(self, inpt: Any, params: Any) -> Any:  # noqa: ARG002
        return v2.functional.invert(inpt)


class HalfNormalize(v1.Normalize):
    """Adds nothing to torchvision's code."""


def read_at_once(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.crop((0, 0, 8, 8))) // 2)


def read_later(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image.crop((0, 0, 8, 8))))


def add_noise(tensor: torch.Tensor) -> torch.Tensor:
    return tensor + torch.rand(1)


AFTERWARDS = v2.Compose([v2.Resize(12), v2.Lambda(add_noise), v2.Normalize([0.5] * 3, [0.5] * 3)])


def with_own_tensors(image: Image.Image) -> torch.Tensor:
    tensor: torch.Tensor = AFTERWARDS(v1.Compose([CROP, TENSOR])(image) * 2)
    return tensor


def with_own_tensors_in_a_dict(image: Image.Image) -> torch.Tensor:
    tensor: torch.Tensor = v2.Compose([v2.Resize(12)])({"image": TENSOR(CROP(image)), "label": 3})["image"]
    return tensor


CROP, TENSOR = v1.RandomCrop(16), v1.ToTensor()
PLACE = r" \(\S*test_workers.py:\d+\)"
# Python 3.10 does not say which class a method's code is of.
CALL = r"(AddNoise\.)?__call__"
# Of 8 files, those that aren't decoded at once: 6 or 7.
OWN_STEPS: dict[str, tuple[Any, str]] = {
    "none": (v1.Compose([CROP, TENSOR, v1.Normalize([0.5] * 3, [0.5] * 3)]), ""),
    "a library's": (
        v1.Compose([CROP, TENSOR, HalfNormalize([0.5] * 3, [0.5] * 3), v1.RandomErasing(1.0)]),
        r"torchvision's RandomErasing runs as Python on 8 tensors",
    ),
    "a library's, v2": (
        v2.Compose([CROP, v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Resize(12), v2.Identity()]),
        r"torchvision's Resize runs as Python on 8 tensors",
    ),
    "in a Lambda": (
        v2.Compose([CROP, TENSOR, v2.Compose([v2.Lambda(add_noise)])]),
        rf"add_noise{PLACE} runs as Python on 8 tensors",
    ),
    "on tensors of the dataset's": (
        with_own_tensors,
        r"torchvision's Resize runs as Python on 8 tensors;"
        rf" add_noise{PLACE} runs as Python on 8 tensors",
    ),
    "on tensors of the dataset's, in a dict": (
        with_own_tensors_in_a_dict,
        r"torchvision's Resize runs as Python on 8 tensors",
    ),
    "a library's on pixels": (lambda image: v1.functional.to_tensor(CROP(image)), ""),
    "between crop and tensor": (
        v1.Compose([CROP, AddNoise(), TENSOR]),
        rf"{CALL}{PLACE} runs as Python on the pixels of [67] images",
    ),
    "before the crop": (
        v2.Compose([AddNoise(), v2.RandomCrop(16), TENSOR]),
        rf"{CALL}{PLACE} runs as Python on the pixels of [67] images",
    ),
    "on the tensor": (
        v1.Compose([CROP, TENSOR, Halve(), partial(count_pixels, scale=2.0)]),
        rf"Halve\.forward{PLACE} runs as Python on 8 tensors;"
        rf" count_pixels{PLACE} runs as Python on 8 tensors",
    ),
    "on both": (
        v1.Compose([CROP, AddNoise(), TENSOR, Halve()]),
        rf"{CALL}{PLACE} runs as Python on the pixels of [67] images;"
        rf" Halve\.forward{PLACE} runs as Python on 8 tensors",
    ),
    "v2's": (
        v2.Compose([CROP, TENSOR, Invert()]),
        rf"Invert\.transform{PLACE} runs as Python on 8 tensors",
    ),
    "outside of a Compose": (
        read_at_once,
        rf"read_at_once{PLACE} runs as Python on the pixels of [67] images",
    ),
    "never": (read_later, ""),
}


@pytest.mark.parametrize("case", OWN_STEPS)
def test_explain_names_the_users_steps_that_take_pixels_or_tensors(case: str, folder: Path) -> None:
    transform, said = OWN_STEPS[case]
    loader = headrace.DataLoader(Listed(folder, transform), 4, num_workers=2)
    assert "your code" not in loader.explain()
    list(loader)
    found = re.findall(r"^your code: (.*)$", loader.explain(), re.MULTILINE)
    assert len(found) == bool(said)
    assert not said or re.fullmatch(said, found[0]), found


def test_explain_does_not_name_code_whose_array_is_recorded(folder: Path) -> None:
    dataset = Listed(folder, lambda image: torch.from_numpy(np.array(CROP(image))).float())
    loader = headrace.DataLoader(dataset, 4, num_workers=1)
    list(loader)
    assert "your code" not in loader.explain()


def written(image: Image.Image) -> int:
    with tempfile.TemporaryFile(buffering=0) as file:
        return file.write(np.asarray(image.resize((100, 100))).data)


def written_by_numpy(image: Image.Image) -> None:
    with tempfile.TemporaryFile() as file:
        np.asarray(image.resize((100, 100))).tofile(file)


@pytest.mark.parametrize("write", [written, written_by_numpy])
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_memory_that_is_passed_to_the_system_is_no_fault_of_a_sample(
    write: Any, on_error: Any, folder: Path
) -> None:
    loader = headrace.DataLoader(Listed(folder, write), 4, num_workers=1, on_error=on_error)
    with pytest.raises(headrace.ConfigError, match="before its values were read") as raised:
        list(loader)
    assert isinstance(raised.value.__cause__, Exception)


class Texts(Dataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> str:
        return "the quick brown fox"


class Replaced(Dataset[Any]):
    """Says what is replaced in the process that makes the sample, after a JPEG file of an edge was used."""

    def __init__(self, use: Callable[[bytes], Any], edge: int) -> None:
        file = io.BytesIO()
        Image.new("RGB", (edge, edge)).save(file, "JPEG")
        self.use, self.file = use, file.getvalue()

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> Any:
        used = self.use(self.file)
        decodes = not isinstance(torch.ops.image.decode_image, torch._ops.OpOverloadPacket)
        return used, "float" in vars(torch.Tensor), "__array__" in vars(Image.Image), decodes


def replaced(use: Callable[[bytes], Any], edge: int) -> list[Any]:
    """The numbers of samples one after another for which the same was replaced."""

    def collate(samples: Any) -> Any:
        tensors = [sample[0] for sample in samples if isinstance(sample[0], torch.Tensor)]
        return torch.stack(tensors) if tensors else None, [sample[1:] for sample in samples]

    loader = headrace.DataLoader(Replaced(use, edge), 16, num_workers=1, collate_fn=collate)
    states = [state for _, states in loader for state in states]
    return [(len(list(same)), *state) for state, same in itertools.groupby(states)]


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file))


def decoded(file: bytes) -> torch.Tensor:
    return decode_image(torch.frombuffer(bytearray(file), dtype=torch.uint8))


USES: dict[str, tuple[Callable[[bytes], Any], int]] = {
    "nothing": (lambda _: None, 100),
    "small files": (lambda file: opened(file).load() and None, 100),
    "large files": (lambda file: opened(file).load() and None, 224),
    "tensors": (lambda file: v1.Compose([v1.ToTensor()])(opened(file)).sum().item(), 100),
    "stacked arrays": (lambda file: torch.from_numpy(np.array(opened(file))).permute(2, 0, 1), 100),
    "decoded": (lambda file: decoded(file).sum().item(), 224),
    "decoded and resized": (lambda file: v2.functional.resize(decoded(file), [50]).sum().item(), 224),
    "decoded and stacked": (decoded, 224),
}
ALL, NONE, NO_DECODING = (True, True, True), (False, False, False), (True, True, False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("use", "left"),
    [
        *(("nothing", NONE), ("small files", NONE), ("large files", ALL), ("tensors", ALL)),
        *(("stacked arrays", ALL), ("decoded", NO_DECODING), ("decoded and stacked", ALL)),
        ("decoded and resized", ALL),
    ],
)
def test_what_is_of_no_use_is_put_back_after_64_samples(use: str, left: tuple[bool, ...]) -> None:
    if use.startswith("decoded") and not decodes_as_pillow(by_torchvision):
        pytest.skip("this torchvision has another libjpeg than Pillow")
    assert replaced(*USES[use]) == ([(96, *ALL)] if left == ALL else [(64, *ALL), (32, *left)])


def test_what_the_user_replaced_meanwhile_stays() -> None:
    def replace_once(_: bytes) -> int:
        if getattr(torch.Tensor.long, "__name__", "") != "<lambda>":
            recorded = torch.Tensor.long
            torch.Tensor.long = lambda x: recorded(x) + 1  # type: ignore[method-assign, assignment]
        return int(torch.zeros(()).long())

    loader = headrace.DataLoader(Replaced(replace_once, 100), 16, num_workers=1, collate_fn=list)
    assert [sample[0] for batch in loader for sample in batch] == 96 * [1]
