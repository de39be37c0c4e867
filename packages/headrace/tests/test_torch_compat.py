"""What Headrace relies on in torch without a promise, and what it does where that is gone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils import worker
from torchvision.transforms import functional
from torchvision.transforms.v2 import functional as v2_functional

from headrace import _torch_compat


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_worker_info", None)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", torch.utils.data.get_worker_info)


def check(info: Any) -> None:
    assert (info.id, info.num_workers, info.seed, info.dataset) == (1, 4, 99, "dataset")


def test_torch_s_own_function_gives_the_worker_s_info() -> None:
    _torch_compat.set_worker_info(1, 4, 99, "dataset")
    check(get_worker_info())
    assert type(get_worker_info()) is worker.WorkerInfo


@pytest.mark.parametrize("missing", ["WorkerInfo", "module"])
def test_without_torch_s_private_names_the_public_one_gives_it(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing == "module":
        monkeypatch.setitem(sys.modules, "torch.utils.data._utils.worker", None)
        monkeypatch.delattr("torch.utils.data._utils.worker")
    else:
        monkeypatch.delattr(worker, missing)
    _torch_compat.set_worker_info(1, 4, 99, "dataset")
    check(torch.utils.data.get_worker_info())


@pytest.mark.parametrize("missing", ["_global_forward_hooks", "_global_forward_pre_hooks"])
def test_where_torch_does_not_tell_of_hooks_there_may_be_some(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _torch_compat.find_call_change(torch.nn.Identity()) is None
    monkeypatch.delattr(torch.nn.modules.module, missing)
    assert _torch_compat.find_call_change(torch.nn.Identity()) == "there are hooks for all modules"


def test_default_collate_follows_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = _torch_compat.default_collate_functions()
    assert torch.Tensor in table
    monkeypatch.setitem(table, torch.Tensor, lambda batch, *, collate_fn_map: len(batch))
    assert default_collate([torch.ones(1)] * 3) == 3
    monkeypatch.setitem(sys.modules, "torch.utils.data._utils.collate", None)
    assert _torch_compat.default_collate_functions() == {}


class Pair(NamedTuple):
    first: Any
    second: Any


class Pinnable:
    pinned = False

    def pin_memory(self) -> Pinnable:
        other = Pinnable()
        other.pinned = True
        return other


def test_pinning_without_torch_s_function_looks_into_the_same_containers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = {"a": [Pinnable(), 5, "text"], "b": Pair(Pinnable(), (Pinnable(),))}
    monkeypatch.setitem(sys.modules, "torch.utils.data._utils.pin_memory", None)
    pinned = _torch_compat.pin_memory(data)
    assert pinned["a"][0].pinned
    assert pinned["a"][1:] == [5, "text"]
    assert isinstance(pinned["b"], Pair)
    assert pinned["b"].first.pinned
    assert pinned["b"].second[0].pinned


PRIVATE = re.compile(
    r"torch(vision)?(\.\w+)*\._[a-z]|import _[a-z]\w+ as|data\._utils|_new_shared|_share_fd|_cdata"
    r"|tensor\._version|_is_in_bad_fork|_BatchNorm|_MultiProcessingDataLoaderIter|signal_handling|_auto_collation|ExceptionWrapper"
)
# A class whose objects users get from a public function has no other name.
KNOWN = {"torchvision.transforms._presets"}


def test_no_other_module_uses_a_private_name_of_torch() -> None:
    folder = Path(_torch_compat.__file__).parent
    for path in folder.rglob("*.py"):
        if path.name == "_torch_compat.py":
            continue
        text = path.read_text().replace("_torch_compat", "")
        for known in KNOWN:
            text = text.replace(known, "")
        assert not PRIVATE.search(text), f"{path}: {PRIVATE.search(text)}"


def test_changes_of_a_tensor_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.zeros(3)
    before = _torch_compat.changes_of(tensor)
    assert _torch_compat.changes_of(tensor) == before
    tensor.add_(1)
    assert _torch_compat.changes_of(tensor) > before

    class Untold:
        def is_inference(self) -> bool:
            return False

    untold: Any = Untold()
    assert _torch_compat.changes_of(untold) != _torch_compat.changes_of(untold)


def test_a_kernel_of_torchvision_is_replaced_and_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.new("RGB", (2, 2))
    undo = _torch_compat.replace_kernel(v2_functional.invert, Image.Image, lambda kernel: lambda _: "mine")
    assert undo is not None
    assert v2_functional.invert(image) == "mine"
    undo()
    assert v2_functional.invert(image).getpixel((0, 0)) == (255, 255, 255)
    assert _torch_compat.replace_kernel(len, Image.Image, lambda kernel: kernel) is None
    monkeypatch.setitem(sys.modules, "torchvision.transforms.v2.functional._utils", None)
    monkeypatch.delattr("torchvision.transforms.v2.functional._utils")
    assert _torch_compat.replace_kernel(v2_functional.invert, Image.Image, lambda kernel: kernel) is None


def test_a_function_of_torchvision_for_images_is_replaced_and_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = Image.new("RGB", (2, 2))
    undo = _torch_compat.replace_implementation("pil", "hflip", lambda original: lambda _: original)
    assert undo is not None
    assert functional.hflip(image)(image).size == (2, 2)
    undo()
    assert functional.hflip(image).size == (2, 2)
    assert _torch_compat.replace_implementation("pil", "nonsense", lambda original: original) is None
    monkeypatch.setitem(sys.modules, "torchvision.transforms._functional_pil", None)
    monkeypatch.delattr("torchvision.transforms._functional_pil")
    assert _torch_compat.replace_implementation("pil", "hflip", lambda original: original) is None
