"""What Headrace relies on in torch without a promise, and what it does where that is gone."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils import worker

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


def test_pinning_without_torch_s_function_looks_into_the_same_containers() -> None:
    data = {"a": [Pinnable(), 5, "text"], "b": Pair(Pinnable(), (Pinnable(),))}
    pinned = _torch_compat._pinned(data)
    assert pinned["a"][0].pinned
    assert pinned["a"][1:] == [5, "text"]
    assert isinstance(pinned["b"], Pair)
    assert pinned["b"].first.pinned
    assert pinned["b"].second[0].pinned


def test_worker_processes_use_no_other_private_name_of_torch() -> None:
    folder = Path(_torch_compat.__file__).parent / "engine" / "workers"
    for path in folder.glob("*.py"):
        text = re.sub(r"_torch_compat", "", path.read_text())
        assert not re.search(r"torch(\.\w+)*\._[a-z]|_utils|_new_shared|_share_fd|_cdata", text), path
