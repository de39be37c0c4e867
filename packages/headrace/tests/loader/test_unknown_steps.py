"""Datasets that native code reads, with a step that it doesn't know: as written, with deferred pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import ConcatDataset, Subset, default_collate, get_worker_info
from torch.utils.data import DataLoader as TorchDataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
import headrace.testing
from headrace.errors import ConfigError
from headrace.packs.pack import pack
from support import pngs
from support.equal import same
from support.jpegs import image_folder
from support.unknown import Augment, Jitter, Rotation

N = 23
SIZE = 24
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
END_V1 = [v1.ToTensor(), v1.Normalize(*IMAGENET)]
END_V2 = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(*IMAGENET)]
DEFERRED = "native code decodes and transforms them"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of all kinds, of which native code leaves the CMYK JPEG, and one of the PNGs, to Pillow."""
    root = image_folder(tmp_path_factory.mktemp("images"), N - 6)
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
    """A user function that draws from all three generators."""
    import random

    factor = float(torch.rand(())) + np.random.rand() + random.random()
    return image.point(lambda level: int(level * factor / 3))


def described(image: Image.Image) -> torch.Tensor:
    """A user function that looks at more than pixels."""
    told = repr((type(image), image.mode, image.size, image.format, sorted(image.info.items(), key=repr)))
    numbers = np.frombuffer(told.encode(), np.uint8)
    return torch.from_numpy(np.append(np.array(image).reshape(-1), numbers))


PIPELINES = {
    "between v1": [v1.RandomResizedCrop(SIZE), v1.RandomHorizontalFlip(), Augment(), darker, *END_V1],
    "between v2": [v2.RandomResizedCrop(SIZE), v2.RandomVerticalFlip(), Jitter(0.4), Rotation(9), *END_V2],
    "first": [Jitter(0.4), v1.RandomResizedCrop(SIZE), *END_V1],
    "size varies": [v1.Resize(40), darker, v1.CenterCrop(32), *END_V1],
    "erased": [v1.RandomResizedCrop(SIZE), ImageOps.invert, *END_V1, v1.RandomErasing(0.7, value="random")],
    "erased before the end": [
        v1.CenterCrop(SIZE),
        v1.ToTensor(),
        v1.RandomErasing(0.7),
        v1.Normalize([0], [2]),
    ],
    "on tensors": [v1.CenterCrop(SIZE), v1.ToTensor(), v1.Lambda(lambda x: x + torch.rand(()))],
    "bytes": [v1.RandomCrop(SIZE, pad_if_needed=True), Augment(), v1.PILToTensor()],
    "info": [v1.RandomCrop(66, pad_if_needed=True), v1.CenterCrop(60), described],
    "elastic": [v1.RandomResizedCrop(SIZE), v2.ElasticTransform(9.0, 2.0), v1.ToTensor()],
}


def dataset(folder: Path, name: str = "between v1") -> ImageFolder:
    return ImageFolder(str(folder), v1.Compose(PIPELINES[name]))


@pytest.mark.parametrize("name", PIPELINES)
def test_batches_are_torchs_with_torchs_random_numbers(folder: Path, name: str) -> None:
    data = Subset(dataset(folder, name), range(0, N, 2))
    batches = []
    for make in (headrace.DataLoader, TorchDataLoader):
        torch.manual_seed(7)
        loader = make(data, 1 if name == "info" else 5, num_workers=2)
        batches.append(list(loader))
        if isinstance(loader, headrace.DataLoader):
            assert loader.explain().startswith("plan: python")
            assert "images: native code decodes" in loader.explain()
    assert same(*batches)


@pytest.mark.parametrize("name", ["between v1", "between v2", "erased"])
def test_with_a_seed_samples_depend_on_seed_epoch_and_index_alone(folder: Path, name: str) -> None:
    data = dataset(folder, name)
    data.samples = [(path, i) for i, (path, _) in enumerate(data.samples)]
    loader = headrace.DataLoader(data, 4, shuffle=True, seed=3, num_workers=2)
    batches = list(loader)
    samples = {int(i): image for images, labels in batches for image, i in zip(images, labels, strict=True)}
    assert len(samples) == N
    for index in range(0, N, 3):
        assert torch.equal(samples[index], headrace.testing.replay(loader, index)[0])
    for workers in (0, 1):
        other = headrace.DataLoader(data, 7, seed=3, num_workers=workers)
        images = torch.cat([images for images, _ in other])
        assert all(torch.equal(images[i], samples[i]) for i in range(N))
    resumed = headrace.DataLoader(data, 4, shuffle=True, seed=3, num_workers=1)
    again = iter(headrace.DataLoader(data, 4, shuffle=True, seed=3, num_workers=0))
    state = None
    loader.set_epoch(0)
    for _ in zip(range(3), loader, strict=False):
        state = loader.state_dict()
    assert state is not None
    resumed.load_state_dict(state)
    assert same(list(resumed), list(again)[3:])


def test_indices_that_come_again_and_count_from_the_end(folder: Path) -> None:
    data = Subset(dataset(folder), range(3, N))
    loader = headrace.DataLoader(data, 6, sampler=[5, 5, -1, 5, N - 4, 2], seed=4, num_workers=1)
    ((images, _),) = loader
    for position, (index, occurrence) in enumerate([(5, 0), (5, 1), (N - 4, 0), (5, 2), (N - 4, 1), (2, 0)]):
        assert torch.equal(images[position], headrace.testing.replay(loader, index, occurrence=occurrence)[0])
    assert len({image.numpy().tobytes() for image in images}) == 6


@pytest.mark.parametrize("context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_pack_in_any_kind_of_process(folder: Path, tmp_path: Path, context: str) -> None:
    pack(str(folder), str(tmp_path / "pack"))
    transform = v1.Compose([v1.RandomResizedCrop(SIZE), Jitter(0.4), *END_V1])
    data = headrace.PackedDataset(tmp_path / "pack", transform, target_transform=str)
    loader = headrace.DataLoader(data, N, seed=1, num_workers=1, multiprocessing_context=context)
    ((images, labels),) = loader
    assert DEFERRED in loader.explain()
    assert list(labels) == [str(label) for label in data.targets]
    for i in range(N):
        assert torch.equal(images[i], headrace.testing.replay(loader, i)[0])


class Fragile:
    """Raises for images whose first pixel is red enough."""

    def __call__(self, image: Any) -> Any:
        red = image.getpixel((0, 0))[0]
        if red > 150:
            raise ValueError(f"too red: {red}")
        return image


@pytest.mark.parametrize("concatenated", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_failing_samples_are_named_skipped_or_replaced(
    folder: Path, workers: int, concatenated: bool
) -> None:
    end = [v1.CenterCrop(SIZE), v1.ToTensor()]
    plain = ImageFolder(str(folder), v1.Compose(end))
    images = [image for image, _ in plain]
    transform = v1.Compose([end[0], Fragile(), end[1]])
    data: Any = ImageFolder(str(folder), transform)
    paths = [path for path, _ in data.samples]
    if concatenated:
        data = ConcatDataset([Subset(data, range(5)), Subset(data, range(5, N))])
    bad = [i for i, image in enumerate(images) if round(float(image[0, 0, 0]) * 255) > 150]
    good = [i for i in range(N) if i not in bad]
    assert 3 < len(bad) < N - 3
    with pytest.raises(ValueError, match="too red") as caught:
        next(iter(headrace.DataLoader(data, N, num_workers=workers)))
    notes = getattr(caught.value, "__notes__", [f"sample {bad[0]} ({paths[bad[0]]})"])
    assert f"sample {bad[0]} ({paths[bad[0]]})" in notes[0]
    skipping = headrace.DataLoader(data, 7, num_workers=workers, on_error="skip")
    assert torch.equal(torch.cat([batch for batch, _ in skipping]), torch.stack([images[i] for i in good]))
    failures = skipping.stats().failures
    assert [(f.index, f.path, f.action) for f in failures] == [(i, paths[i], "skipped") for i in bad]
    replacing = headrace.DataLoader(data, 7, num_workers=workers, on_error="replace")
    stand_ins = [next(j % N for j in range(i, 3 * N) if j % N in good) for i in range(N)]
    expected = torch.stack([images[i] for i in stand_ins])
    assert torch.equal(torch.cat([batch for batch, _ in replacing]), expected)


def test_a_transform_that_changes_between_epochs(folder: Path) -> None:
    unknown, native = v1.Compose([v1.CenterCrop(9), ImageOps.invert, v1.ToTensor()]), PIPELINES["first"][1:]
    for kept in (False, True):
        data = ImageFolder(str(folder), unknown)
        loader = headrace.DataLoader(data, 8, num_workers=1, persistent_workers=kept)
        first = list(loader)
        assert same(first, list(TorchDataLoader(data, 8)))
        data.transform = v1.Compose([v1.Resize((5, 6)), ImageOps.invert, *END_V1])
        assert same(list(loader), first if kept else list(TorchDataLoader(data, 8)))  # as in torch
        data.transform = v1.Compose([v1.CenterCrop(12), *native[1:]])
        assert loader.explain().startswith("plan: native")
        assert same(list(loader), list(TorchDataLoader(data, 8)))
        data.transform = unknown
        assert same(list(loader), first)


@pytest.mark.parametrize("workers", [0, 2])
def test_threads_and_the_calling_thread_run_it_as_it_is(folder: Path, workers: int) -> None:
    data = ImageFolder(str(folder), v1.Compose([v1.CenterCrop(SIZE), ImageOps.invert, *END_V1]))
    loader = headrace.DataLoader(data, 8, num_workers=workers, worker_kind="thread")
    assert "images: Pillow decodes those that the dataset opens" in loader.explain()
    assert same(list(loader), list(TorchDataLoader(data, 8)))
    assert torch.equal(headrace.testing.replay(loader, 0)[0], data[0][0])
    with pytest.raises(ConfigError, match="Native code has no part in this loader"):
        headrace.testing.draws(loader, 0)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16])
def test_the_cast_and_the_layout_that_the_loader_was_asked_for(folder: Path, dtype: torch.dtype) -> None:
    data = ImageFolder(str(folder), v1.Compose([v1.CenterCrop(SIZE), ImageOps.invert, *END_V1]))
    loader = headrace.DataLoader(data, N, num_workers=1, dtype=dtype, memory_format=torch.channels_last)
    ((images, _),) = loader
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(images, default_collate([image for image, _ in data]).to(dtype))


def as_given(samples: list[Any]) -> list[Any]:
    assert type(get_worker_info().dataset) is ImageFolder  # type: ignore[union-attr]
    return samples


@pytest.mark.parametrize("end", [END_V1, [v2.ToImage()], [np.asarray]], ids=["v1", "v2", "arrays"])
def test_the_users_collation_is_given_samples(folder: Path, end: list[Any]) -> None:
    data = ImageFolder(str(folder), v1.Compose([v1.Resize(30), ImageOps.invert, *end]), target_transform=str)
    ours = list(headrace.DataLoader(data, 7, num_workers=2, collate_fn=as_given))
    assert same(ours, list(TorchDataLoader(data, 7, num_workers=1, collate_fn=as_given)))
