"""explain() against golden files. After a change that is meant: UPDATE_GOLDEN=1, then read the diff."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from headrace.plan import Plan, explain, make_plan
from headrace.plan.planner import with_batch_transform
from headrace.plan.segments import DatasetSegment, Step
from headrace.plan.transform import NO_NATIVE_FORM
from headrace.transforms import op as op_module
from support.array_datasets import mnist
from support.deferred_images import needs_native

GOLDEN = Path(__file__).parents[1] / "golden" / "explain"
IMAGENET = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def compare(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def pillow_13(monkeypatch: pytest.MonkeyPatch) -> None:
    """The golden files are those of Pillow 13.0."""
    monkeypatch.setattr(op_module.PIL, "__version__", "13.0.1")


def folder(transform: Any, names: list[str] | None = None) -> ImageFolder:
    """An ImageFolder of files that nobody opens."""
    dataset = ImageFolder.__new__(ImageFolder)
    names = names or ["a.jpg", "b.JPEG", "c.bmp", *[f"{i}.jpeg" for i in range(1197)]]
    dataset.samples = [(f"/data/{name}", i % 10) for i, name in enumerate(names)]
    dataset.loader = v1_loader()
    dataset.transform, dataset.target_transform = transform, None
    return dataset


def v1_loader() -> Any:
    from torchvision.datasets.folder import default_loader

    return default_loader


TRAIN = v1.Compose(
    [v1.RandomResizedCrop(224), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(*IMAGENET)]
)
VALIDATE = v2.Compose(
    [
        v2.Resize(256, antialias=True),
        v2.CenterCrop(224),
        v2.Resize((224, 224)),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(*IMAGENET),
    ]
)
RICH = v2.Compose(
    [
        v2.RandomResizedCrop(224),
        v2.ElasticTransform(),
        v2.ToImage(),
        v2.ToDtype(torch.float32),
        v2.Resize(100),
    ]
)


def test_training() -> None:
    compare("train", explain(make_plan(folder(TRAIN))))


def test_validation_with_all_options() -> None:
    dataset = folder(VALIDATE)
    dataset.target_transform = abs
    plan = make_plan(dataset, collate_fn=sorted, dtype=torch.bfloat16, memory_format=torch.channels_last)
    compare("validate", explain(plan))


def test_values_made_on_a_device() -> None:
    transform = v1.Compose([*TRAIN.transforms, v1.RandomErasing(0.1, value="random")])
    layout, device = torch.channels_last, torch.device("cuda")
    plan = make_plan(folder(transform), dtype=torch.bfloat16, memory_format=layout, device=device)
    mixed = with_batch_transform(plan, v2.CutMix(num_classes=10), device)
    assert [where for where, _ in mixed.steps()[-2:]] == ["device", "device"]
    assert with_batch_transform(plan, v2.CutMix(num_classes=10)).steps()[-1][0] == "python"
    compare("device", explain(mixed))


def test_erasing_on_the_host() -> None:
    transform = v2.Compose([*VALIDATE.transforms, v2.RandomErasing(value=(0.1, 0.2, 0.3)), v2.ToPureTensor()])
    for device in (None, torch.device("cpu")):
        compare("erasing", explain(make_plan(folder(transform), device=device)))


def test_pictures_in_memory() -> None:
    steps = v1.Compose([v1.ToTensor(), v1.Normalize([0.1307], [0.3081])])
    dataset = mnist(torch.zeros(60, 28, 28, dtype=torch.uint8), steps)
    compare("gather", explain(make_plan(dataset)))
    compare("gather_device", explain(make_plan(dataset, dtype=torch.float16, device=torch.device("xpu"))))


def test_explain_of_a_refused_pipeline() -> None:
    compare("refused", explain(make_plan(folder(RICH), batch_size=None)))


def test_other_formats() -> None:
    needs_native("PNG")
    needs_native("WEBP")
    compare("formats", explain(make_plan(folder(TRAIN, ["a.bmp", "b.tiff"]))))


def test_a_plan_made_by_hand() -> None:
    """Only the plan speaks: no file, no version, no dataset is looked at."""
    steps = (
        Step("Recordings (data.py:7)", "a dataset of its own kind", refused=True),
        Step("blur (aug.py:41)", NO_NATIVE_FORM, refused=True),
    )
    compare("by_hand", explain(Plan((DatasetSegment(steps=steps),))))


def test_no_line_is_too_wide_and_none_ends_in_blanks() -> None:
    for transform in (TRAIN, VALIDATE, RICH):
        for line in explain(make_plan(folder(transform))).splitlines():
            assert len(line) <= 160
            assert line == line.rstrip()
