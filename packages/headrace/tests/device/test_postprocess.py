"""Erasing, and the end of a plan on the device: rows equal what torchvision makes of the same draws."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

import headrace
import headrace.testing
from headrace.device.postprocess import Postprocess
from headrace.engine.lower import lower_pipeline, make_sample
from headrace.plan import Plan, make_plan
from headrace.plan.segments import NativeSegment
from headrace.records import BatchKeys, SampleKey
from headrace.transforms import RandomErasing
from support.jpegs import image_folder

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
HEAD = [v1.RandomResizedCrop(24), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)]
HEAD_V2 = [
    v2.RandomResizedCrop(24),
    v2.ToImage(),
    v2.ToDtype(torch.float32, scale=True),
    v2.Normalize(MEAN, STD),
]
PIPELINES: dict[str, list[Any]] = {
    "number": [*HEAD, v1.RandomErasing(0.5)],
    "always": [*HEAD, v1.RandomErasing(1.0, value=0.37)],
    "three": [*HEAD, v1.RandomErasing(0.8, value=(0.1, -2.0, 3.3))],
    "random": [*HEAD, v1.RandomErasing(0.8, (0.1, 0.5), (0.5, 2.0), "random")],
    "v2": [*HEAD_V2, v2.RandomErasing(0.8, value=(0.1, 0.2, 0.3)), v2.ToPureTensor()],
    "v2 random": [*HEAD_V2, v2.RandomErasing(0.8, value="random")],
    "levels": [v1.CenterCrop(24), v1.PILToTensor(), v1.RandomErasing(0.8, value=(7, 250, 3.7))],
    "half": [
        *HEAD[:2],
        v1.PILToTensor(),
        v1.ConvertImageDtype(torch.float16),
        v1.RandomErasing(0.8, value=0.1),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("erased"), 20, side=48)


def loader_of(folder: Path, transforms: list[Any], **options: Any) -> headrace.DataLoader:
    dataset = ImageFolder(str(folder), v1.Compose(transforms))
    return headrace.DataLoader(dataset, batch_size=8, num_workers=2, seed=5, **options)


def erasing_of(plan: Plan) -> RandomErasing:
    assert plan.values is not None
    assert plan.values.erasing is not None
    return plan.values.erasing.erase


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_rows_are_torchvisions_for_the_same_draws(
    folder: Path, name: str, dtype: torch.dtype | None, memory_format: torch.memory_format
) -> None:
    order = [*range(19, -1, -1), 3, 3]
    loader = loader_of(folder, PIPELINES[name], dtype=dtype, memory_format=memory_format, sampler=order)
    plan = loader.plan()
    assert plan.native is not None, loader.explain()
    rows = torch.cat([images for images, _ in loader])
    assert len(rows) == len(order)
    erased = 0
    for position, index in enumerate(order):
        occurrence = order[:position].count(index)
        expected = headrace.testing.replay(loader, index, occurrence=occurrence)
        assert rows[position].dtype == expected.dtype == (dtype or plan.native.dtype)
        assert torch.equal(rows[position], expected)
        step, box = headrace.testing.draws(loader, index, occurrence=occurrence)[-1]
        assert step == erasing_of(plan)
        erased += box[2] * box[3] > 0
    assert erased > 5
    assert erased == len(rows) or name != "always"


@pytest.mark.parametrize("name", PIPELINES)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_the_plan_for_a_device_gives_the_same(
    folder: Path, name: str, memory_format: torch.memory_format
) -> None:
    """What the device would be sent, finished as it would finish it, is the batch made on the host."""
    check_device_plan(folder, PIPELINES[name], memory_format, torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", PIPELINES)
def test_rows_are_torchvisions_on_a_device(folder: Path, name: str, gpu: torch.device) -> None:
    check_device_plan(folder, PIPELINES[name], torch.channels_last, gpu)


def check_device_plan(
    folder: Path, transforms: list[Any], memory_format: torch.memory_format, device: torch.device
) -> None:
    loader = loader_of(folder, transforms, memory_format=memory_format)
    images, labels = next(iter(loader))
    options: dict[str, Any] = {"memory_format": memory_format, "device": torch.device("cuda")}
    plan = make_plan(loader.dataset, **options)
    native, values = plan.native, plan.values
    assert native is not None
    assert values is not None
    assert values.table is not None
    assert (values.where, values.table.dtype) == ("device", images.dtype)
    assert native.dtype == torch.uint8
    key = loader.random_key()
    levels = images_of(native, key).contiguous(memory_format=memory_format)
    keys = BatchKeys(*key, np.arange(8), np.zeros(8, np.int64))
    found, same_labels = Postprocess(values)([levels.to(device), labels], keys)
    assert same_labels is labels
    assert found.is_contiguous(memory_format=memory_format)
    assert torch.equal(found.cpu(), images)


def images_of(native: NativeSegment, key: tuple[int, int]) -> torch.Tensor:
    """The first 8 samples of `native` as native code would write them."""
    pipeline = lower_pipeline(native, decoders=0)
    return torch.stack([make_sample(native, pipeline, SampleKey(*key, i))[0] for i in range(8)])


def test_a_collation_of_the_users_own_gets_what_the_transform_gives(folder: Path) -> None:
    seen: list[torch.Tensor] = []

    def collate(samples: list[Any]) -> Any:
        seen.extend(image for image, _ in samples)
        return default_collate(samples)

    transforms = [*HEAD_V2, v2.RandomErasing(1.0, value=9.0)]
    loader = loader_of(folder, transforms, collate_fn=collate)
    plan = make_plan(loader.dataset, collate_fn=collate, device=torch.device("cuda"))
    assert plan.native is not None
    assert plan.values is not None
    assert plan.values.where == "native"
    next(iter(loader))
    assert all(type(image) is tv_tensors.Image for image in seen)
    assert all(torch.equal(image, headrace.testing.replay(loader, i)) for i, image in enumerate(seen[:8]))


def test_erasing_needs_the_samples_keys(folder: Path) -> None:
    plan = loader_of(folder, PIPELINES["number"]).plan()
    assert plan.values is not None
    with pytest.raises(ValueError, match="erasing 2 images needs the keys of as many samples"):
        Postprocess(plan.values).images(torch.zeros(2, 3, 24, 24), None)


@pytest.mark.parametrize(
    ("transforms", "reason"),
    [
        ([*HEAD[:3], v1.RandomErasing(), v1.Normalize(MEAN, STD)], "erases before other steps"),
        ([v1.CenterCrop(24), v1.ToTensor(), v1.RandomErasing(), v1.RandomHorizontalFlip()], "erases before"),
        ([v2.CenterCrop(24), v2.RandomErasing(), v2.ToImage()], "erases before other steps"),
        ([*HEAD, v1.RandomErasing(), v1.RandomErasing()], "erases before other steps"),
        ([v1.CenterCrop(24), v1.PILToTensor(), v1.RandomErasing(value="random")], "uint8 doesn't hold"),
        ([v1.CenterCrop(24), v1.PILToTensor(), v1.RandomErasing(value=-1)], "uint8 doesn't hold"),
        ([*HEAD, v1.RandomErasing(value=(1, 2))], "must be one number, or one for each of 3 channels"),
        ([*HEAD, v1.RandomErasing(value=np.float32(1))], "isn't a number, three of them or 'random'"),
    ],
)
def test_what_is_not_understood_stays_python(folder: Path, transforms: list[Any], reason: str) -> None:
    plan = loader_of(folder, transforms).plan()
    assert plan.runs_python
    assert any(reason in given for given in plan.reasons)
