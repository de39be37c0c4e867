"""Loaders made anew with other settings, and stages that cost nothing."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from headrace.measure.settings import arguments_of, name_of, with_settings
from headrace.measure.subject import batch_samples, clone, nbytes
from headrace.measure.without import REMEMBERED, Remembered, without


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index)), index


@pytest.mark.parametrize("settings", [{}, {"loader": {"num_workers": 1}}, {"headrace": True}])
@pytest.mark.parametrize("batch_size", [4, None])
def test_another_loader_gives_the_same_batches(settings: dict[str, Any], batch_size: int | None) -> None:
    loader = DataLoader(Rows(), batch_size=batch_size)
    other = with_settings(loader, settings, headrace.DataLoader)
    assert isinstance(other, headrace.DataLoader) == bool(settings.get("headrace"))
    for one, same in zip(loader, other, strict=True):
        assert torch.equal(one[0], same[0])


def test_what_is_not_changed_is_kept() -> None:
    loader = DataLoader(Rows(), 2, num_workers=1, prefetch_factor=3, persistent_workers=True, drop_last=True)
    other = with_settings(loader, {"loader": {"num_workers": 2}}, None)
    assert (other.num_workers, other.prefetch_factor, other.persistent_workers) == (2, 3, True)
    assert other.drop_last
    assert "prefetch_factor" not in arguments_of(with_settings(loader, {"loader": {"num_workers": 0}}, None))


def test_settings_have_names() -> None:
    assert name_of("supply", {}) == "supply"
    assert name_of("supply", {"loader": {"num_workers": 8}}) == "supply num_workers=8"
    assert name_of("demand", {"threads": 4}) == "demand threads=4"


def test_a_clone_shares_nothing() -> None:
    batch = {"x": torch.ones(2, 3), "rest": [torch.zeros(2), ("a", [1])]}
    twin = clone(batch)
    twin["x"].add_(1)
    twin["rest"][1][1].append(2)
    assert torch.equal(batch["x"], torch.ones(2, 3))
    assert batch["rest"][1] == ("a", [1])
    assert nbytes(batch) == 4 * (6 + 2)
    assert batch_samples(batch, None) == 2
    assert batch_samples(["text"], 7) == 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(REMEMBERED):
            picture = Image.new("RGB", (20 + number, 30), (number, 100, 50))
            picture.save(tmp_path / name / f"{number}.png")
    return tmp_path


class Counted:
    """A step of a transform that knows how often it ran."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, picture: Any) -> Any:
        self.calls += 1
        return picture


def test_a_transform_that_is_left_out_runs_a_few_times_only(folder: Path) -> None:
    counted = Counted()
    steps = transforms.Compose([transforms.Resize((8, 8)), counted, transforms.ToTensor()])
    loader = DataLoader(Subset(ImageFolder(folder, steps), range(16)), batch_size=4)
    assert without(loader, "transform:Counted")
    for _ in range(3):
        for images, _labels in loader:
            assert images.shape == (4, 3, 8, 8)
    assert counted.calls == REMEMBERED
    assert not without(loader, "transform:Missing")


def test_a_collate_that_is_left_out_runs_a_few_times_only() -> None:
    calls = []

    def collate(samples: list[Any]) -> Any:
        calls.append(len(samples))
        return torch.stack([sample[0] for sample in samples])

    loader = DataLoader(Rows(), batch_size=1, collate_fn=collate)
    assert without(loader, "collate")
    batches = list(loader)
    assert len(calls) == REMEMBERED
    batches[0].add_(5)  # the user's own
    assert torch.equal(next(iter(loader))[0], torch.full((3,), 2.0))


@pytest.fixture
def _opened_as_ever() -> Iterator[None]:
    before = builtins.open, Image.open
    yield
    builtins.open, Image.open = before  # type: ignore[assignment]


@pytest.mark.usefixtures("_opened_as_ever")
def test_reads_that_are_left_out_give_other_files_of_the_kind(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, transforms.ToTensor()), batch_size=None)
    assert without(loader, "read")
    assert len(list(loader)) == 2 * REMEMBERED
    for path in folder.rglob("*.png"):
        path.unlink()
    assert len(list(loader)) == 2 * REMEMBERED
    with open(__file__) as file:
        assert file.read(3) == '"""'


@pytest.mark.usefixtures("_opened_as_ever")
def test_decoding_that_is_left_out_gives_pictures_all_the_same(folder: Path) -> None:
    loader = DataLoader(ImageFolder(folder, transforms.ToTensor()), batch_size=None)
    assert without(loader, "decode")
    shapes = [image.shape for _ in range(2) for image, _ in loader]
    assert len(set(shapes)) == REMEMBERED


def test_what_is_remembered_comes_in_turn() -> None:
    made: list[int] = []
    remembered = Remembered(lambda x: made.append(x) or x)
    assert [remembered(x) for x in range(3 * REMEMBERED)] == 3 * list(range(REMEMBERED))
    assert made == list(range(REMEMBERED))
