"""A drop-in where native code begins samples and the user's Python goes on: errors, collation, epochs."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch.utils.data import DataLoader as TorchDataLoader
from torch.utils.data import default_collate, get_worker_info
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
import headrace.testing
from headrace.engine.split import SplitPipelineFactory
from headrace.errors import ConfigError, SampleError
from headrace.packs.pack import pack
from support.equal import same
from support.unknown import Augment, Jitter

N = 30
SIZE = 16


class Fragile:
    """Raises for images whose first pixel is red enough."""

    def __init__(self, most: int) -> None:
        self.most = most

    def __call__(self, image: Any) -> Any:
        red = image.getpixel((0, 0))[0]
        if red > self.most:
            raise ValueError(f"too red: {red}")
        return image


def bad(dataset: ImageFolder, most: int) -> list[int]:
    """Indices that `Fragile` raises for."""
    dataset.transform = v1.CenterCrop(SIZE)
    return [i for i in range(N) if dataset[i][0].getpixel((0, 0))[0] > most]


TO_TENSOR = (v1.ToTensor(),)
END = (v1.ToTensor(), v1.Normalize([0.2, 0.3, 0.4], [0.5, 0.6, 0.7]))


def split(folder: Path, *middle: Any, end: Any = TO_TENSOR) -> ImageFolder:
    return ImageFolder(str(folder), v1.Compose([v1.CenterCrop(SIZE), *middle, *end]))


@pytest.fixture
def fragile(folder: Path) -> tuple[ImageFolder, list[int]]:
    """A dataset some of whose samples raise in the user's code, and these."""
    dataset = split(folder)
    whose = bad(dataset, 150)
    assert 3 < len(whose) < N - 3
    return split(folder, Fragile(150)), whose


@pytest.mark.parametrize("workers", [0, 2])
def test_the_users_own_error_names_the_sample(fragile: Any, workers: int) -> None:
    dataset, whose = fragile
    loader = headrace.DataLoader(dataset, N, num_workers=workers)
    with pytest.raises(ValueError, match="too red") as caught:
        next(iter(loader))
    told = f"{caught.value} {getattr(caught.value, '__notes__', '')}"
    assert f"this was sample {whose[0]} ({dataset.samples[whose[0]][0]}) of the dataset" in told


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_and_replace(fragile: Any, workers: int) -> None:
    dataset, whose = fragile
    whole = default_collate([split(Path(dataset.root))[i] for i in range(N)])[0]
    good = [i for i in range(N) if i not in whose]
    skipping = headrace.DataLoader(dataset, 7, num_workers=workers, on_error="skip")
    assert torch.equal(torch.cat([images for images, _ in skipping]), whole[good])
    failures = skipping.stats().failures
    assert [(f.index, f.path, f.action) for f in failures] == [
        (i, dataset.samples[i][0], "skipped") for i in whose
    ]
    assert failures[0].cause.startswith("ValueError: too red")
    replacing = headrace.DataLoader(dataset, 7, num_workers=workers, on_error="replace")
    stand_ins = [next(j % N for j in range(i, 3 * N) if j % N in good) for i in range(N)]
    assert torch.equal(torch.cat([images for images, _ in replacing]), whole[stand_ins])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_file_is_a_sample_error(folder: Path, tmp_path: Path, workers: int) -> None:
    dataset = split(folder, Augment())
    path = tmp_path / "cut.jpg"
    path.write_bytes(Path(dataset.samples[4][0]).read_bytes()[:200])
    dataset.samples[4] = (str(path), 0)
    loader = headrace.DataLoader(dataset, N, num_workers=workers)
    with pytest.raises(SampleError, match=r"sample 4 \(.*cut\.jpg\) can't be loaded: "):
        next(iter(loader))
    skipping = headrace.DataLoader(dataset, N, num_workers=workers, on_error="skip")
    ((images, _),) = skipping
    assert len(images) == N - 1
    (failure,) = skipping.stats().failures
    assert (failure.index, failure.path) == (4, str(path))
    assert "can't be loaded" not in failure.cause


def test_an_index_outside_the_dataset(folder: Path) -> None:
    loader = headrace.DataLoader(split(folder, Augment()), 2, sampler=[0, N], num_workers=0)
    with pytest.raises(IndexError, match=f"index {N} is out of range for {N} samples"):
        next(iter(loader))


def as_given(samples: list[Any]) -> list[Any]:
    return samples


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("end", [[v1.ToTensor(), v1.Normalize([0.5], [0.5])], [v2.ToImage()], []], ids=len)
def test_the_users_collation_is_given_samples(folder: Path, end: list[Any], workers: int) -> None:
    dataset = split(folder, v1.Lambda(_same), end=end)
    dataset.target_transform = str
    ours = list(headrace.DataLoader(dataset, 7, num_workers=workers, collate_fn=as_given))
    theirs = list(TorchDataLoader(dataset, 7, collate_fn=as_given))
    if end:
        assert same(packed(ours), packed(theirs))
        assert type(ours[0][0][0]) is (tv_tensors.Image if len(end) == 1 else torch.Tensor)
    else:
        for ours_batch, batch in zip(ours, theirs, strict=True):
            for (image, label), (their_image, their_label) in zip(ours_batch, batch, strict=True):
                assert (image.tobytes(), image.info, label) == (
                    their_image.tobytes(),
                    their_image.info,
                    their_label,
                )


def packed(value: Any) -> Any:
    """The same with contiguous tensors: ToImage's own have the image's strides."""
    if isinstance(value, torch.Tensor):
        return value.contiguous()
    return type(value)(map(packed, value)) if isinstance(value, (list, tuple)) else value


def open_upright(path: str) -> Any:
    return ImageOps.exif_transpose(Image.open(path).convert("RGB"))


def as_array(image: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(image.resize((SIZE, SIZE))))


def _same(image: Any) -> Any:
    return image if image else None  # not just "return image", which the planner knows


def test_target_transforms_go_on_with_the_samples_generator(folder: Path) -> None:
    def noisy(label: int) -> float:
        return label + float(torch.rand(()))

    dataset = split(folder, Augment())
    dataset.target_transform = noisy
    first, again = (
        torch.cat([labels for _, labels in headrace.DataLoader(dataset, size, seed=1, num_workers=0)])
        for size in (4, 7)
    )
    assert torch.equal(first, again)
    assert len(first.unique()) == N


@pytest.mark.parametrize("middle", [[], [v1.Lambda(_same)]], ids=len)
def test_unbatched_samples_equal_torchs(folder: Path, middle: list[Any]) -> None:
    dataset = split(folder, *middle, end=[v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])
    loader = headrace.DataLoader(dataset, None, num_workers=0)
    assert loader.explain().startswith("plan: split")
    assert same(packed(list(loader)), packed(list(TorchDataLoader(dataset, None))))


def test_sizes_that_vary_are_torchs_own_error(folder: Path) -> None:
    dataset = ImageFolder(str(folder), v1.Compose([v1.Resize(20), v1.ToTensor()]))
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(headrace.DataLoader(dataset, N, num_workers=0))
    ours = list(headrace.DataLoader(dataset, N, num_workers=0, collate_fn=as_given))
    assert same(ours, list(TorchDataLoader(dataset, N, collate_fn=as_given)))


def test_pictures_cant_be_stacked_as_in_torch(folder: Path) -> None:
    with pytest.raises(TypeError, match="default_collate"):
        next(iter(headrace.DataLoader(ImageFolder(str(folder)), 4, num_workers=0)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_transform_that_changes_between_epochs(folder: Path, workers: int) -> None:
    dataset = split(folder, v1.Lambda(_same), end=END)
    loader = headrace.DataLoader(dataset, 8, num_workers=workers)
    for transform in (
        v1.Compose([v1.CenterCrop(9), v1.Lambda(_same), v1.ToTensor()]),
        v1.Compose([v1.CenterCrop(12), v1.ToTensor()]),  # native
        v1.Compose([v1.Resize((5, 6)), v1.Lambda(_same), *END]),
    ):
        assert same(list(loader), list(TorchDataLoader(dataset, 8)))
        dataset.transform = transform
    assert same(list(loader), list(TorchDataLoader(dataset, 8)))


def test_workers_that_stay_stay_with_their_plan(folder: Path) -> None:
    dataset = split(folder, v1.Lambda(_same), end=END)
    loader = headrace.DataLoader(dataset, 8, num_workers=1, persistent_workers=True)
    first = list(loader)
    dataset.transform = v1.Compose([v1.CenterCrop(9), v1.Lambda(_same), v1.ToTensor()])
    assert same(list(loader), first)


def test_workers_that_stay_finish_their_batches_after_a_transform_that_is_wholly_python(folder: Path) -> None:
    dataset = split(folder, v1.Lambda(_same), end=END)
    loader = headrace.DataLoader(dataset, 8, num_workers=1, persistent_workers=True)
    first = list(loader)
    dataset.loader, dataset.transform = open_upright, as_array
    assert (loader.plan().runs_python, loader.plan().head) == (True, None)
    assert same(list(loader), first)


def test_workers_that_stay_tell_repeated_samples_apart_after_another_transform(folder: Path) -> None:
    transform = v1.Compose([v1.RandomCrop(SIZE), v1.Lambda(_same), *END])
    dataset = ImageFolder(str(folder), transform)
    loader = headrace.DataLoader(dataset, 8, sampler=[3] * 8, num_workers=1, persistent_workers=True)
    list(loader)
    dataset.loader, dataset.transform = open_upright, as_array
    assert (loader.plan().runs_python, loader.plan().head) == (True, None)
    ((images, _),) = loader
    assert not all(torch.equal(image, images[0]) for image in images)


def test_threads_and_workers_that_stay_take_turns(folder: Path) -> None:
    dataset = split(folder, v1.Lambda(_same), end=END)
    loader = headrace.DataLoader(dataset, 8, num_workers=1, persistent_workers=True)
    expected = list(TorchDataLoader(dataset, 8))
    for kind in ("process", "thread", "process"):
        loader.worker_kind = kind  # type: ignore[assignment]
        assert same(list(loader), expected)


def test_code_in_a_worker_sees_the_users_dataset(folder: Path) -> None:
    def init(_: int) -> None:
        info = get_worker_info()
        assert info is not None
        assert type(info.dataset) is ImageFolder

    dataset = split(folder, v1.Lambda(_same))
    loader = headrace.DataLoader(dataset, 8, num_workers=1, worker_init_fn=init)
    assert same(list(loader), list(TorchDataLoader(dataset, 8)))


def test_batches_that_are_held_are_not_written_to(folder: Path) -> None:
    dataset = split(folder, v1.Lambda(_same), end=END)
    for workers in (0, 1):
        held = [images for images, _ in headrace.DataLoader(dataset, 3, num_workers=workers)]
        assert same(held, [images for images, _ in TorchDataLoader(dataset, 3)])


def test_explain_names_who_runs_each_step(folder: Path) -> None:
    dataset = split(folder, Augment())
    assert (
        "workers: 3 processes: num_workers=3; each has a copy of the dataset"
        in headrace.DataLoader(dataset, num_workers=3).explain()
    )
    assert "workers: none: num_workers=0" in headrace.DataLoader(dataset, num_workers=0).explain()


def test_threads_run_the_dataset_as_it_is(folder: Path) -> None:
    dataset = split(folder, v1.Lambda(_same), end=END)
    loader = headrace.DataLoader(dataset, 8, num_workers=2, worker_kind="thread")
    assert loader.explain().startswith("plan: python")
    assert same(list(loader), list(TorchDataLoader(dataset, 8)))
    assert torch.equal(headrace.testing.replay(loader, 0)[0], dataset[0][0])
    with pytest.raises(ConfigError, match="Native code has no part in this loader"):
        headrace.testing.draws(loader, 0)


def test_what_python_drew_is_not_replayed_without_a_seed(folder: Path) -> None:
    loader = headrace.DataLoader(split(folder, Augment(), end=END), 8, num_workers=0)
    images, _ = next(iter(loader))
    assert headrace.testing.draws(loader, 0)
    with pytest.raises(ConfigError, match="Give the loader a seed to replay samples"):
        headrace.testing.replay(loader, 0)
    known = headrace.DataLoader(split(folder, end=END), 8, num_workers=0)
    images, _ = next(iter(known))
    assert torch.equal(images[0], headrace.testing.replay(known, 0))


def test_a_spawned_worker_plans_for_itself(folder: Path) -> None:
    dataset = split(folder, Augment())
    plan = headrace.DataLoader(dataset).plan()
    assert plan.head is not None
    guard = SplitPipelineFactory(plan, {})
    assert len(pickle.dumps(guard)) < 1000
    there = pickle.loads(pickle.dumps(guard))
    planned = there(dataset, default_collate, "raise").plan.head
    assert planned is not None
    assert planned.ops == plan.head.ops
    dataset.transform = v1.Compose([v1.CenterCrop(SIZE), v1.ToTensor()])
    with pytest.raises(RuntimeError, match="ImageFolder is another dataset once it was pickled"):
        there(dataset, default_collate, "raise")


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_a_split_pipeline_over_a_pack_equals_replay(folder: Path, tmp_path: Path, context: str) -> None:
    pack(str(folder), str(tmp_path / "pack"))
    transform = v1.Compose([v1.RandomResizedCrop(SIZE), Jitter(0.4), *END])
    dataset = headrace.PackedDataset(tmp_path / "pack", transform)
    loader = headrace.DataLoader(dataset, N, seed=1, num_workers=1, multiprocessing_context=context)
    ((images, labels),) = loader
    assert loader.explain().startswith("plan: split")
    assert labels.tolist() == dataset.targets
    for i in range(N):
        assert torch.equal(images[i], headrace.testing.replay(loader, i))
