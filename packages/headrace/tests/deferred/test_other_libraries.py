"""Datasets of other libraries, in worker processes: with deferred images batches are those of torch."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1

import headrace
from support.equal import same
from support.extras import integration
from support.jpegs import image_folder

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = v1.Compose(
    [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = image_folder(tmp_path_factory.mktemp("images"), 12, side=60)
    return sorted(folder.rglob("*.jpg"))


def batches(loader: type[DataLoader[Any]], dataset: Any, **options: Any) -> list[Any]:
    torch.manual_seed(5)
    return list(loader(dataset, **{"batch_size": 4, "num_workers": 1, **options}))


def check(dataset: Any, **options: Any) -> None:
    wanted = batches(DataLoader, dataset, **options)
    assert same(batches(headrace.DataLoader, dataset, **options), wanted)
    assert same(batches(headrace.DataLoader, dataset, deferred=False, **options), wanted)


def rows(table: dict[str, Any]) -> dict[str, Any]:
    return {"pixels": [CROP(image.convert("RGB")) for image in table["image"]], "n": table["n"]}


@pytest.mark.parametrize("stored", ["bytes", "paths"])
@pytest.mark.parametrize("way", ["with_transform", "set_transform", "with_format"])
def test_a_hugging_face_dataset_gives_the_same_batches(files: list[Path], way: str, stored: str) -> None:
    hf = integration("datasets")
    images = [
        {"bytes": file.read_bytes(), "path": None}
        if stored == "bytes"
        else {"bytes": None, "path": str(file)}
        for file in files
    ]
    features = hf.Features({"image": hf.Image(), "n": hf.Value("int64")})
    dataset = hf.Dataset.from_dict({"image": images, "n": list(range(len(files)))}, features=features)
    if way == "with_transform":
        dataset = dataset.with_transform(rows)
    elif way == "set_transform":
        dataset.set_transform(rows)
    check(dataset, collate_fn=None if way != "with_format" else as_pixels)


def as_pixels(samples: list[Any]) -> list[Any]:
    """Of images that no transform has seen, as Hugging Face gives them without one."""
    return [(sample["image"].tobytes(), sample["image"].size, sample["n"]) for sample in samples]


def test_a_hugging_face_dataset_has_its_tensors_made_natively(files: list[Path]) -> None:
    hf = integration("datasets")
    table = {"image": [str(file) for file in files], "n": list(range(len(files)))}
    dataset = hf.Dataset.from_dict(table).cast_column("image", hf.Image()).with_transform(rows)
    loader = headrace.DataLoader(dataset, 12, num_workers=1)
    list(loader)
    # Pillow decodes the two that are progressive.
    assert "writes the tensors (10 images, 12 tensors" in loader.explain()


def shards(files: list[Path], folder: Path) -> list[str]:
    paths = [folder / f"{number}.tar" for number in range(2)]
    for number, path in enumerate(paths):
        with tarfile.open(path, "w") as shard:
            for i, file in list(enumerate(files))[number::2]:
                for name, data in ((f"{i:04}.jpg", file.read_bytes()), (f"{i:04}.cls", str(i).encode())):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(data)
                    shard.addfile(entry, io.BytesIO(data))
    return [str(path) for path in paths]


@pytest.mark.parametrize("mode", ["pil", "pilrgb", "rgb8", "torchrgb"])
def test_a_pipeline_of_webdataset_gives_the_same_batches(
    files: list[Path], tmp_path: Path, mode: str
) -> None:
    webdataset = integration("webdataset")
    transform = _of_pil if mode.startswith("pil") else _as_tensor
    dataset = (
        webdataset.WebDataset(shards(files, tmp_path), shardshuffle=False, empty_check=False)
        .decode(mode)
        .to_tuple("jpg", "cls")
        .map_tuple(transform, int)
    )
    size = {} if mode.startswith("pil") else {"batch_size": None}
    check(dataset, num_workers=2, **size)


def _as_tensor(pixels: Any) -> torch.Tensor:
    return pixels if isinstance(pixels, torch.Tensor) else torch.from_numpy(pixels.copy())


def _of_pil(image: Any) -> Any:
    return CROP(image.convert("RGB"))


class Augmented(Dataset[Any]):
    """Arrays made of Pillow's images, which albumentations changes."""

    def __init__(self, files: list[Path], chain: Any) -> None:
        self.files = files
        self.chain = chain

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.files[index])
        pixels = np.array(image.convert("RGB"))
        return self.chain(image=pixels)["image"], index, type(image).__name__


def test_albumentations_gets_the_arrays_that_it_gets_with_torch(files: list[Path]) -> None:
    albumentations = integration("albumentations")
    crop, flip = albumentations.RandomResizedCrop((24, 24)), albumentations.HorizontalFlip()
    jitter, values = albumentations.ColorJitter(), albumentations.Normalize()
    dataset = Augmented(files, albumentations.Compose([crop, flip, jitter, values], seed=3))
    wanted = batches(DataLoader, dataset)
    ours = batches(headrace.DataLoader, dataset)
    assert {kind for batch in ours for kind in batch[2]} == {"JpegImageFile"}
    assert same([batch[:2] for batch in ours], [batch[:2] for batch in wanted])
    assert same(batches(headrace.DataLoader, dataset, deferred=False), wanted)
