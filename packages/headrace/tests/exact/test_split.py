"""Steps in the middle that run as Python: every byte is torchvision's, on any workers and across a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import Subset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
import headrace.testing
from support import pngs
from support.equal import same
from support.jpegs import image_folder

N = 23
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
END_V1 = [v1.ToTensor(), v1.Normalize(*IMAGENET)]
END_V2 = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*IMAGENET)]

HALVED = [v1.ToTensor(), v1.Normalize([0.0], [2.0]), v1.ConvertImageDtype(torch.uint8)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of all kinds, of which native code leaves the CMYK JPEG, and one of the PNGs, to Pillow."""
    root = image_folder(tmp_path_factory.mktemp("pictures"), N - 6)
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (70, 60, 3), np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(root / "class0" / "z.png")
    Image.fromarray(pixels).save(root / "class0" / "z.webp", exif=exif)
    texts = [(b"tEXt", b"Title\0behind the pixels"), (b"eXIf", exif.tobytes()[6:])]
    (root / "class1" / "texts.png").write_bytes(pngs.png(rng, 60, 70, after=texts))
    gray = pngs.png(rng, 60, 70, 8, pngs.GRAY, before=[(b"tRNS", b"\0\5"), (b"gAMA", b"\0\0\xb1\x8f")])
    (root / "class1" / "gray.png").write_bytes(gray)
    palette = pngs.png(rng, 60, 70, 8, pngs.PALETTE, before=[(b"tRNS", b"\xff\0\xff")])
    (root / "class2" / "palette.png").write_bytes(palette)
    Image.fromarray(pixels).convert("CMYK").save(root / "class1" / "z.jpg")
    return root


def darker(image: Image.Image) -> Image.Image:
    """A function of the user's that draws from all three generators."""
    import random

    factor = float(torch.rand(())) + np.random.rand() + random.random()
    return image.point(lambda level: int(level * factor / 3))


class Jitter(v1.ColorJitter):
    """A subclass of the user's, with a forward of its own."""

    def forward(self, img: Any) -> Any:
        return super().forward(img)


def dataset(folder: Path, *steps: Any) -> ImageFolder:
    return ImageFolder(str(folder), v1.Compose(list(steps)))


def check(loader: headrace.DataLoader) -> list[Any]:
    """Asserts that every sample of an epoch in order is what torchvision makes; gives the batches."""
    assert loader.explain().startswith("plan: split")
    batches = list(loader)
    samples = [sample for images, _ in batches for sample in images]
    assert len(samples) == len(loader.dataset)  # type: ignore[arg-type]
    for index, sample in enumerate(samples):
        expected = headrace.testing.replay(loader, index)
        assert sample.dtype == expected.dtype
        assert torch.equal(sample, expected), index
    return batches


def derived(transform: Any) -> Any:
    """The same of a class of one's own, which no planner can know."""
    cls = type(transform)
    own = {"__module__": cls.__module__, "__call__": lambda self, *inputs: cls.__call__(self, *inputs)}
    transform.__class__ = type(cls.__name__, (cls,), own)
    return transform


MIDDLES = {
    "RandAugment": lambda api: derived(api.RandAugment()),
    "AutoAugment": lambda api: derived(api.AutoAugment()),
    "TrivialAugmentWide": lambda api: derived(api.TrivialAugmentWide()),
    "AugMix": lambda api: derived(api.AugMix()),
    "ColorJitter": lambda api: derived(api.ColorJitter(0.4, 0.4, 0.4, 0.1)),
    "GaussianBlur": lambda api: derived(api.GaussianBlur(3)),
    "RandomRotation": lambda api: derived(api.RandomRotation(30)),
    "RandomAffine": lambda api: derived(api.RandomAffine(10, (0.1, 0.1), shear=5)),
    "RandomPerspective": lambda api: derived(api.RandomPerspective(p=1.0)),
    "RandomGrayscale": lambda api: derived(api.RandomGrayscale(0.5)),
    "RandomApply": lambda api: derived(api.RandomApply([api.ColorJitter(0.4)], p=0.5)),
    "lambda": lambda _: lambda image: ImageOps.invert(image),
    "function": lambda _: darker,
    "subclass": lambda _: Jitter(0.4),
}


@pytest.mark.parametrize("name", MIDDLES)
@pytest.mark.parametrize("api", [v1, v2], ids=["v1", "v2"])
def test_any_user_step_between_native_ones_equals_torchvision(folder: Path, api: Any, name: str) -> None:
    begin = [api.RandomResizedCrop(32), api.RandomHorizontalFlip()]
    end = END_V1 if api is v1 else END_V2
    data = dataset(folder, *begin, MIDDLES[name](api), *end)
    batches = check(headrace.DataLoader(data, 7, seed=3, num_workers=0))
    # The oracle seeds what it calls, so it must be seen to depend on the sample and the epoch.
    again = headrace.DataLoader(data, 7, seed=4, num_workers=0)
    assert not torch.equal(next(iter(again))[0], batches[0][0])


JITTER, AUGMENT, GRAY = derived(v1.ColorJitter(0.4)), derived(v1.RandAugment()), derived(v1.Grayscale())

PIPELINES = {
    "nothing before": [JITTER, v1.RandomResizedCrop(24), *END_V1],
    "size varies": [
        v1.Resize(40),
        v1.RandomVerticalFlip(),
        JITTER,
        v1.CenterCrop(32),
        *END_V1,
    ],
    "padded, size varies": [
        v1.RandomCrop(99, pad_if_needed=True),
        derived(v1.RandomRotation(9)),
        v1.Resize(32),
        *END_V2,
    ],
    "erased at the end": [
        v1.RandomResizedCrop(24),
        AUGMENT,
        *END_V1,
        v1.RandomErasing(0.7),
    ],
    "erased with noise": [
        v1.CenterCrop(24),
        AUGMENT,
        *END_V1,
        v1.RandomErasing(0.7, value="random"),
    ],
    "erased with colours": [v1.Resize((24, 25)), darker, *END_V1, v2.RandomErasing(0.7, value=[1, 2, 3])],
    "erased before the end": [
        v1.CenterCrop(24),
        v1.ToTensor(),
        v1.RandomErasing(0.7),
        v1.Normalize([0], [2]),
    ],
    "tensors in the middle": [v1.CenterCrop(24), v1.ToTensor(), v1.Lambda(lambda x: x + torch.rand(()))],
    "gray in the middle": [
        v1.CenterCrop(24),
        GRAY,
        v1.ToTensor(),
        v1.Normalize([0.5], [0.5]),
    ],
    "bytes": [v1.RandomCrop(24, pad_if_needed=True), AUGMENT, v1.PILToTensor()],
    "bytes of a table": [v1.RandomResizedCrop(24), AUGMENT, *HALVED],
}


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("workers", [0, 2])
def test_split_pipelines_equal_torchvision(folder: Path, name: str, workers: int) -> None:
    check(headrace.DataLoader(dataset(folder, *PIPELINES[name]), 5, seed=1, num_workers=workers))


@pytest.mark.parametrize("size", [1, 6])
def test_erasing_doesnt_depend_on_batches(folder: Path, size: int) -> None:
    steps = [v1.CenterCrop(24), AUGMENT, *END_V1, v1.RandomErasing(0.7)]
    loader = headrace.DataLoader(dataset(folder, *steps), N, seed=1, num_workers=0)
    whole = check(loader)[0][0]
    given = headrace.DataLoader(dataset(folder, *steps), size, seed=1, num_workers=0, collate_fn=list)
    for i, (image, _) in enumerate(sample for batch in given for sample in batch):
        assert torch.equal(image, whole[i])


@pytest.mark.parametrize("dtype", [None, torch.uint8, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("end", [END_V1, [v1.PILToTensor()], [*END_V1, v1.RandomErasing()]])
def test_dtypes_and_layouts(folder: Path, end: list[Any], dtype: Any, memory_format: Any) -> None:
    data = dataset(folder, v1.RandomResizedCrop((24, 41)), AUGMENT, *end)
    options: Any = {"dtype": dtype, "memory_format": memory_format}
    for images, _ in check(headrace.DataLoader(data, 8, seed=1, num_workers=0, **options)):
        assert images.is_contiguous(memory_format=memory_format)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("batch_size", [1, 8])
def test_any_number_of_workers_gives_the_same(folder: Path, workers: int, batch_size: int) -> None:
    data = numbered(folder)
    whole = next(iter(headrace.DataLoader(data, N, seed=3, num_workers=0)))[0]
    loader = headrace.DataLoader(data, batch_size, shuffle=True, seed=3, num_workers=workers)
    seen = []
    for images, numbers in loader:
        assert torch.equal(images, whole[numbers])
        seen += numbers.tolist()
    assert sorted(seen) == list(range(N))


def numbered(folder: Path) -> ImageFolder:
    """A split pipeline whose labels are the samples' numbers."""
    data = dataset(folder, v1.RandomResizedCrop(24), AUGMENT, darker, *END_V1)
    data.samples = [(path, i) for i, (path, _) in enumerate(data.samples)]
    return data


def test_a_split_epoch_resumes_exactly(folder: Path) -> None:
    first = headrace.DataLoader(numbered(folder), 4, shuffle=True, seed=3, num_workers=0)
    whole = list(first)
    first.set_epoch(0)
    iterator = iter(first)
    for _ in range(3):
        next(iterator)
    resumed = headrace.DataLoader(numbered(folder), 4, shuffle=True, seed=3, num_workers=2)
    resumed.load_state_dict(first.state_dict())
    assert same(list(resumed), whole[3:])
    assert same(list(iterator), whole[3:])


def test_indices_that_come_again_and_count_from_the_end(folder: Path) -> None:
    data = Subset(numbered(folder), range(3, N))
    loader = headrace.DataLoader(data, 6, sampler=[5, 5, -1, 5, N - 4, 2], seed=4, num_workers=1)
    ((images, numbers),) = loader
    assert numbers.tolist() == [8, 8, N - 1, 8, N - 1, 5]
    for position, (index, occurrence) in enumerate([(5, 0), (5, 1), (N - 4, 0), (5, 2), (N - 4, 1), (2, 0)]):
        assert torch.equal(images[position], headrace.testing.replay(loader, index, occurrence=occurrence))
    assert len({image.numpy().tobytes() for image in images}) == 6


def test_draws_of_a_split_pipeline_are_reported(folder: Path) -> None:
    loader = headrace.DataLoader(numbered(folder), 4, seed=3, num_workers=0)
    ((step, box),) = headrace.testing.draws(loader, 2, epoch=0)
    assert str(step).startswith("RandomResizedCrop")
    assert box[2] > 0


def tell(image: Image.Image) -> Any:
    """All that a function of the user's can see of an image."""
    pixels = torch.from_numpy(np.array(image))
    return pixels, (
        type(image).__name__,
        image.mode,
        image.size,
        image.format,
        repr(sorted(image.info.items())),
    )


@pytest.mark.parametrize(
    "begin",
    [
        [],
        [v1.Resize(30)],
        [v1.CenterCrop(20), v1.RandomHorizontalFlip(1.0)],
        [v1.CenterCrop(100)],
        [v1.RandomCrop(90, pad_if_needed=True, padding_mode="edge")],
    ],
    ids=str,
)
def test_the_users_function_sees_the_picture_that_torchvision_gives(tmp_path: Path, begin: list[Any]) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a").mkdir()
    for i, side in enumerate((95, 100, 130)):
        pixels = np.random.default_rng(i).integers(0, 256, (side, side + i, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "a" / f"{i}.jpg", exif=exif, dpi=(72, 72), comment=b"words")
    data = dataset(tmp_path, *begin, tell)
    loader = headrace.DataLoader(data, 1, seed=0, num_workers=0, collate_fn=list)
    for i, ((found, target),) in enumerate(loader):
        if any(isinstance(step, v1.RandomCrop) for step in begin):  # one pixel to choose from
            continue
        expected, label = data[i]
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]
        assert target == label


def test_exif_is_obeyed_where_the_user_does(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (tmp_path / "a").mkdir()
    Image.new("RGB", (40, 30), (9, 99, 199)).save(tmp_path / "a" / "0.jpg", exif=exif)
    data = dataset(tmp_path, ImageOps.exif_transpose, v1.ToTensor())
    ((images, _),) = headrace.DataLoader(data, 1, num_workers=0)
    assert images.shape == (1, 3, 40, 30)
    assert torch.equal(images[0], data[0][0])


@pytest.mark.parametrize("context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.long)])
def test_any_kind_of_process(folder: Path, context: str) -> None:
    data = dataset(folder, v1.RandomResizedCrop(24), v2.ElasticTransform(9.0, 2.0), v1.ToTensor())
    check(headrace.DataLoader(data, 8, seed=3, num_workers=1, multiprocessing_context=context))


def test_nothing_random_is_what_torchs_own_loader_gives(folder: Path) -> None:
    for end in ([*END_V1], [*END_V2], [v1.PILToTensor()], [v1.ToTensor(), v1.Lambda(torch.neg)]):
        data = dataset(folder, v1.Resize((31, 30)), v1.CenterCrop(24), v1.Lambda(ImageOps.invert), *end)
        found = list(headrace.DataLoader(data, 4, num_workers=2))
        assert same(found, list(TorchDataLoader(data, 4)))
