"""The stage without a cluster: the loader's samples, whichever call they come in."""

from __future__ import annotations

import doctest
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

import headrace
import headrace.ray_data
from headrace.errors import ConfigError, SampleError
from headrace.order import Endless, RepeatedAugmentation, Sequential, Shuffled
from headrace.ray_data import Decode, Finish, read
from support.jpegs import image_folder
from support.ray_datasets import DRAWN, EPOCH, SEED, VALUES, N, Noisy, epoch_of, same_row, samples_of, sets

KINDS = ["float32", "uint8", "erased", "unknown", "python", "tensors"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), N)


def stage_of(dataset: Any, **more: Any) -> Decode:
    return Decode(dataset, **{"order": Shuffled(dataset), "seed": SEED, "epoch": EPOCH, "threads": 2, **more})


def rows_of(stage: Decode, positions: Any) -> list[dict[str, Any]]:
    rows = []
    for batch in stage({"id": np.asarray(positions, dtype=np.int64)}):
        rows += [{name: column[i] for name, column in batch.items()} for i in range(len(batch["id"]))]
    return rows


@pytest.mark.parametrize("kind", KINDS)
def test_any_call_gives_the_samples_of_the_loader(folder: Path, kind: str) -> None:
    dataset = sets(folder)[kind]
    expected = samples_of(epoch_of(dataset))
    shuffled = np.random.default_rng(0).permutation(N)
    for step, batch_size in ((7, None), (N, 3), (1, 5)):
        stage, seen = stage_of(dataset, batch_size=batch_size), []
        for begin in range(0, N, step):
            for row in rows_of(stage, shuffled[begin : begin + step]):
                position = int(row.pop("id"))
                seen.append(position)
                assert same_row(row, expected[position]), (step, position)
        assert seen == shuffled.tolist()


def test_packs_give_the_same_after_pickling(folder: Path, tmp_path: Path) -> None:
    headrace.pack(str(folder), str(tmp_path / "pack"))
    dataset = headrace.PackedDataset(tmp_path / "pack", v1.Compose([*DRAWN, *VALUES]))
    expected = samples_of(epoch_of(dataset))
    rows = rows_of(stage_of(pickle.loads(pickle.dumps(dataset))), range(N))
    assert all(
        same_row({"image": r["image"], "label": r["label"]}, e) for r, e in zip(rows, expected, strict=True)
    )


def test_repeated_samples_differ_by_their_occurrence(folder: Path) -> None:
    dataset = sets(folder)["uint8"]
    order = RepeatedAugmentation(dataset, 3)
    loader = headrace.DataLoader(dataset, N, sampler=order, seed=SEED)
    loader.set_epoch(EPOCH)
    images = next(iter(loader))[0]
    rows = rows_of(stage_of(dataset, order=order), range(N))
    assert all(np.array_equal(row["image"], image) for row, image in zip(rows, images, strict=True))
    assert not np.array_equal(rows[0]["image"], rows[1]["image"])


def test_batches_that_are_held_are_not_overwritten(folder: Path) -> None:
    stage = stage_of(sets(folder)["uint8"], batch_size=4)
    held = [batch["image"] for batch in stage({"id": np.arange(12)})]
    copies = [images.copy() for images in held]
    for _ in range(3):
        list(stage({"id": np.arange(12, 36)}))
    assert all(np.array_equal(images, copy) for images, copy in zip(held, copies, strict=True))


def test_a_call_that_is_left_does_not_disturb_the_next(folder: Path) -> None:
    dataset = sets(folder)["float32"]
    stage = stage_of(dataset, batch_size=4)
    left = iter(stage({"id": np.arange(N)}))
    next(left)
    del left
    expected = samples_of(epoch_of(dataset))
    rows = rows_of(stage, range(N))
    assert all(np.array_equal(row["image"], e["image"]) for row, e in zip(rows, expected, strict=True))


@pytest.mark.parametrize("kind", ["float32", "uint8", "unknown", "python", "tensors"])
def test_levels_are_finished_to_the_same_bits(folder: Path, kind: str) -> None:
    dataset = sets(folder)[kind]
    expected, finish = samples_of(epoch_of(dataset)), Finish(dataset)
    for batch in stage_of(dataset, levels=True, batch_size=8)({"id": np.arange(N)}):
        if kind == "float32":
            assert batch["image"].dtype == np.uint8
        if "image" in batch:
            batch["image"] = finish(torch.from_numpy(batch["image"])).numpy()
        for i, position in enumerate(batch.pop("id").tolist()):
            assert same_row({name: column[i] for name, column in batch.items()}, expected[position])


def test_levels_cannot_be_erased(folder: Path) -> None:
    dataset = sets(folder)["erased"]
    with pytest.raises(ConfigError, match="Take it out of the transform"):
        stage_of(dataset, levels=True)
    with pytest.raises(ConfigError, match="RandomErasing writes values"):
        Finish(dataset)


def test_other_columns_stay(folder: Path) -> None:
    ids = np.array([5, 3, 9, 1])
    batches = list(stage_of(sets(folder)["uint8"], batch_size=3)({"id": ids, "weight": ids / 2}))
    assert [batch["weight"].tolist() for batch in batches] == [[2.5, 1.5, 4.5], [0.5]]
    assert [batch["id"].tolist() for batch in batches] == [[5, 3, 9], [1]]


@pytest.fixture
def damaged(tmp_path: Path) -> tuple[ImageFolder, int]:
    """A dataset, and a sample of it that can't be loaded."""
    dataset = ImageFolder(str(image_folder(tmp_path, 12)), v1.Compose([*DRAWN, *VALUES]))
    Path(dataset.samples[4][0]).write_bytes(b"no picture")
    return dataset, 4


def test_a_bad_sample_is_named_or_replaced(damaged: tuple[ImageFolder, int]) -> None:
    dataset, bad = damaged
    with pytest.raises(SampleError, match=Path(dataset.samples[bad][0]).name):
        rows_of(Decode(dataset), range(12))
    row = rows_of(Decode(dataset, on_error="replace"), [bad])[0]
    assert row["label"] == dataset.targets[bad + 1]
    for path, _ in dataset.samples:
        Path(path).write_bytes(b"no picture")
    for positions, batch_size in (([bad], None), (range(12), 3)):
        with pytest.raises(SampleError, match="nor can the samples after it"):
            rows_of(Decode(dataset, on_error="replace", batch_size=batch_size), positions)


class Endlessly(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


def test_what_cannot_be_obeyed_is_refused(folder: Path) -> None:
    dataset = sets(folder)["uint8"]
    with pytest.raises(ConfigError, match="by their index"):
        Decode(Endlessly())
    for wrong, text in (
        ({"seed": -1}, "0 to 2"),
        ({"epoch": -1}, "0 or more"),
        ({"batch_size": 0}, "1 or more"),
        ({"on_error": "skip"}, "every row needs its sample"),
    ):
        with pytest.raises(ConfigError, match=text):
            Decode(dataset, **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="there are: item"):
        list(Decode(dataset)({"item": np.arange(3)}))
    with pytest.raises(ConfigError, match="2 parts"):
        rows_of(Decode(dataset, columns=("image",)), [0])
    with pytest.raises(ConfigError, match="'image' is bfloat16"):
        rows_of(Decode(TensorDataset(torch.zeros(3, dtype=torch.bfloat16)), columns=("image",)), [0])
    with pytest.raises(IndexError, match="out of range"):
        rows_of(Decode(dataset), [N])


def test_read_refuses_what_it_cannot_share_out(folder: Path) -> None:
    pytest.importorskip("ray.data", reason="Ray isn't installed (pip install 'headrace[ray]')")
    dataset = Noisy()
    with pytest.raises(ConfigError, match="exclude each other"):
        read(dataset, shuffle=True, sampler=Sequential(dataset))
    with pytest.raises(ConfigError, match=r"one of headrace\.order"):
        read(dataset, sampler=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="infinite samplers can't be used"):
        read(dataset, sampler=Endless(Sequential(dataset)))


def test_the_example_in_the_docstring_works() -> None:
    result = doctest.testmod(headrace.ray_data)
    assert (result.attempted > 0, result.failed) == (True, 0)


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.data", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[ray\]'"):
        read(Noisy())
