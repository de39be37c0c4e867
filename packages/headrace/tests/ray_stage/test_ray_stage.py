"""The stage on a Ray cluster of this machine's."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from headrace.errors import SampleError
from headrace.order import Shuffled
from headrace.ray_data import Decode, Finish, read
from support.jpegs import image_folder
from support.ray_datasets import DRAWN, EPOCH, SEED, VALUES, KillOnce, N, epoch_of, same_row, samples_of, sets

# Ray's own warnings are none of ours.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    pytest.importorskip("ray.data", reason="Ray isn't installed (pip install 'headrace[ray]')")
    import ray.data

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))  # with the tests' own modules
        ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=256 << 20)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"), N)


def pool(ray: Any, size: int = 1) -> Any:
    return ray.data.ActorPoolStrategy(size=size)


def test_an_epoch_is_that_of_the_loader_though_an_actor_is_killed(
    ray: Any, folder: Path, tmp_path: Path
) -> None:
    """Batch for batch, in the same order; images in Ray's shared memory, without a copy."""
    dataset = sets(folder)["float32"]
    expected, finish = epoch_of(dataset, 12), Finish(dataset)
    dataset.target_transform = KillOnce(tmp_path / "killed", after=17)
    rows = read(
        dataset, 12, shuffle=True, seed=SEED, epoch=EPOCH, levels=True, compute=pool(ray)
    ).materialize()
    assert (tmp_path / "killed").exists()
    batches = list(rows.iter_torch_batches(batch_size=12))
    for batch, (images, labels) in zip(batches, expected, strict=True):
        assert batch["image"].dtype == torch.uint8
        assert torch.equal(finish(batch["image"]), images)
        assert torch.equal(batch["label"], labels)
    assert torch.equal(torch.cat([batch["id"] for batch in batches]), torch.arange(N))
    mapped = next(iter(rows.iter_batches(batch_size=12, batch_format="numpy")))["image"]
    assert not mapped.flags.writeable


def in_tasks(ray: Any, dataset: Any, **more: Any) -> Any:
    """An epoch in eight tasks, each of several batches."""
    return ray.data.range(N, override_num_blocks=8).map_batches(
        Decode,
        batch_size=None,
        fn_constructor_args=(dataset,),
        fn_constructor_kwargs={
            "order": Shuffled(dataset),
            "seed": SEED,
            "epoch": EPOCH,
            "batch_size": 2,
            **more,
        },
        compute=pool(ray),
    )


def check(rows: list[dict[str, Any]], dataset: Any) -> None:
    """Every position once, each with the loader's sample."""
    expected = samples_of(epoch_of(dataset))
    assert sorted(int(row["id"]) for row in rows) == list(range(N))
    for row in rows:
        assert same_row({name: row[name] for name in row if name != "id"}, expected[int(row["id"])])


@pytest.mark.long
def test_an_actor_that_is_killed_within_a_task_changes_nothing(
    ray: Any, folder: Path, tmp_path: Path
) -> None:
    dataset = sets(folder)["unknown"]
    dataset.target_transform = KillOnce(tmp_path / "killed", after=13)
    rows = in_tasks(ray, dataset).take_all()
    assert (tmp_path / "killed").exists()
    dataset.target_transform = None
    check(rows, dataset)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["float32", "erased", "python", "tensors"])
def test_every_kind_of_dataset_runs_on_actors(ray: Any, folder: Path, kind: str) -> None:
    dataset = sets(folder)[kind]
    check(in_tasks(ray, dataset).take_all(), dataset)


@pytest.mark.long
def test_ranks_share_an_epoch(ray: Any, folder: Path) -> None:
    """By Ray's own streaming_split: every sample once."""
    dataset = sets(folder)["uint8"]
    parts = read(dataset, 4, shuffle=True, seed=SEED, epoch=EPOCH, compute=pool(ray)).streaming_split(2)

    @ray.remote(num_cpus=0)
    def rank(part: Any) -> list[dict[str, Any]]:
        return list(part.iter_rows())

    rows = ray.get([rank.remote(part) for part in parts])
    assert all(rows)
    check([row for part in rows for row in part], dataset)


@pytest.mark.long
def test_a_bad_sample_is_named_where_the_batches_are_used(ray: Any, tmp_path: Path) -> None:
    dataset = ImageFolder(str(image_folder(tmp_path, N)), v1.Compose([*DRAWN, *VALUES]))
    Path(dataset.samples[4][0]).write_bytes(b"no picture")
    with pytest.raises(Exception, match=Path(dataset.samples[4][0]).name) as told:
        in_tasks(ray, dataset, order=None).take_all()
    assert isinstance(told.value, SampleError) or "SampleError" in str(told.value)
