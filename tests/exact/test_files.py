"""Every kind of file that folders hold: torchvision's own pixels, or torchvision's own error."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import headrace
from support.odd_files import GOOD, ODD_FILES
from support.odd_jpegs import REFUSED

STEPS = transforms.Compose([transforms.Resize(40), transforms.CenterCrop((32, 24)), transforms.ToTensor()])


def folder_of(root: Path, data: bytes) -> ImageFolder:
    (root / "class").mkdir(parents=True)
    (root / "class" / "a.jpeg").write_bytes(data)
    for i in range(9):  # enough JPEGs around it for a native plan
        (root / "class" / f"b{i}.jpg").write_bytes(GOOD)
    return ImageFolder(str(root), STEPS)


def loaded(dataset: ImageFolder) -> tuple[torch.Tensor | None, Exception | None]:
    """What torchvision makes of the first sample, or its error."""
    try:
        return dataset[0][0], None
    except Exception as error:
        return None, error


@pytest.mark.parametrize("name", ODD_FILES)
def test_the_same_pixels_or_the_same_error(tmp_path: Path, name: str) -> None:
    check(tmp_path, ODD_FILES[name]())


@pytest.mark.parametrize("name", REFUSED)
def test_what_our_decoder_refuses_is_still_what_torchvision_makes_of_it(tmp_path: Path, name: str) -> None:
    check(tmp_path, REFUSED[name]())


def check(root: Path, data: bytes) -> None:
    dataset = folder_of(root, data)
    loader = headrace.DataLoader(dataset, batch_size=1, num_workers=1)
    assert loader.plan().native is not None
    expected, problem = loaded(dataset)
    if expected is not None:
        assert torch.equal(next(iter(loader))[0][0], expected)
        return
    with pytest.raises(headrace.SampleError) as caught:
        next(iter(loader))
    assert type(caught.value.__cause__) is type(problem)
    assert str(caught.value.__cause__) == str(problem)


def test_pillows_limit_of_pixels_is_pillows_to_enforce(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = folder_of(tmp_path, GOOD)
    loader = headrace.DataLoader(dataset, batch_size=1, num_workers=1)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 70 // 2 - 1)
    with pytest.raises(headrace.SampleError, match="DecompressionBombError"):
        next(iter(loader))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 90 * 70 - 1)
    with pytest.warns(Image.DecompressionBombWarning):
        images, _ = next(iter(loader))
    with pytest.warns(Image.DecompressionBombWarning):
        assert torch.equal(images[0], dataset[0][0])


def test_a_folder_that_became_unreadable_is_named(tmp_path: Path) -> None:
    dataset = folder_of(tmp_path, GOOD)
    (tmp_path / "class" / "a.jpeg").unlink()
    (tmp_path / "class" / "a.jpeg").mkdir()
    with pytest.raises(headrace.SampleError, match="IsADirectoryError"):
        next(iter(headrace.DataLoader(dataset, batch_size=1)))
