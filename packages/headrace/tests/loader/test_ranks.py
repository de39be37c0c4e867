"""Ranks share an epoch without a gap or a repeat, and nobody is sharded or given duplicates unawares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils import data
from torch.utils.data import DistributedSampler, RandomSampler
from torchvision.datasets import ImageFolder

import headrace
from headrace.order import RepeatedAugmentation, Shuffled
from support.datasets import Numbers, Stream
from support.python import run_python

N = 30


def indices(**settings: Any) -> list[list[int]]:
    loader = headrace.DataLoader(Numbers(settings.pop("n", N)), num_workers=0, **settings)
    batches = [batch.tolist() for batch in loader]
    assert len(batches) == len(loader)
    return batches


@given(n=st.integers(1, 200), world=st.integers(1, 9), batch=st.integers(1, 20), shuffle=st.booleans())
def test_exact_epochs_have_every_sample_once(n: int, world: int, batch: int, shuffle: bool) -> None:
    each = [
        indices(n=n, batch_size=batch, shuffle=shuffle, rank=r, world_size=world, remainder="exact")
        for r in range(world)
    ]
    assert sorted(i for batches in each for b in batches for i in b) == list(range(n))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("n", [30, 31, 35, 5])
def test_in_order_it_is_torchs_distributed_sampler(n: int, drop_last: bool) -> None:
    for rank in range(4):
        sampler: Any = DistributedSampler(Numbers(n), 4, rank, shuffle=False, drop_last=drop_last)
        theirs = data.DataLoader(Numbers(n), batch_size=3, sampler=sampler)
        ours = indices(n=n, batch_size=3, rank=rank, world_size=4, remainder="drop" if drop_last else "pad")
        assert ours == [batch.tolist() for batch in theirs]


def test_without_a_seed_ranks_agree_on_one() -> None:
    torch.manual_seed(1)
    first = indices(batch_size=N, shuffle=True, rank=0, world_size=2)
    torch.manual_seed(2)
    second = indices(batch_size=N, shuffle=True, rank=1, world_size=2)
    assert sorted(first[0] + second[0]) == list(range(N))
    loader = headrace.DataLoader(Numbers(N), N, True, rank=0, world_size=2, num_workers=0)
    epochs = [next(iter(loader)).tolist() for _ in range(2)]
    assert epochs[0] != epochs[1]
    assert loader.random_key() == loader.random_key(1) == (0, 1)


def test_repeats_go_to_different_ranks() -> None:
    order = RepeatedAugmentation(N, 3, 3 * N)
    each = [indices(batch_size=5, sampler=order, seed=1, rank=r, world_size=3) for r in range(3)]
    assert each[0] == each[1] == each[2]


@pytest.fixture
def two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


def test_ranks_are_found_when_asked_for(two_ranks: None) -> None:
    loader = headrace.DataLoader(Numbers(N), 5, True, rank="auto", num_workers=0)
    assert len(loader) == 3
    assert "ranks: 1 of 2, global batches of 10, remainder pad" in loader.explain()
    assert "order: Shuffled of 30, seed 0" in loader.explain()


def test_nobody_is_sharded_or_given_duplicates_unawares(two_ranks: None) -> None:
    loader = headrace.DataLoader(Numbers(N), 5, True, num_workers=0)
    assert (
        "ranks: not shared, each of 2 gets every sample; pass rank='auto' to share them" in loader.explain()
    )
    with pytest.warns(UserWarning, match="Each of 2 ranks gets every sample .* rank='auto' .* world_size=1"):
        assert len(list(loader)) == 6
    for other in (
        {"shuffle": True, "world_size": 1},
        {"sampler": RandomSampler(Numbers(N))},
        {"shuffle": False},
    ):
        quiet: Any = headrace.DataLoader(Numbers(N), 5, num_workers=0, **other)
        assert len(list(quiet)) == 6


def test_explain_tells_order_and_ranks(dataset: ImageFolder) -> None:
    loader = headrace.DataLoader(dataset, 5, True)
    order = "order: Shuffled of 30, seed drawn by torch for each epoch\n"
    assert order + "ranks: not shared, this process gets every sample\n" in loader.explain()
    sampler: Any = DistributedSampler(dataset, 2, 1)
    loader = headrace.DataLoader(dataset, 5, sampler=sampler)
    expected = "order: sampler torch.utils.data.distributed.DistributedSampler of 15, num_replicas 2\n"
    assert expected + "ranks: left to the sampler\n" in loader.explain()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 2, "world_size": 2}, r"rank \(2\) and world_size \(2\)"),
        ({"rank": 0}, r"rank \(0\) and world_size \(None\)"),
        ({"rank": -1, "world_size": 2}, r"rank \(-1\)"),
        ({"rank": True, "world_size": 2}, r"rank \(True\)"),
        ({"world_size": 2}, r"world_size \(2\) needs a rank"),
        ({"rank": "auto", "world_size": 2}, r"world_size \(2\) needs a rank .* 'auto'"),
        ({"remainder": "half"}, r"remainder \('half'\) must be 'pad', 'drop' or 'exact'"),
        ({"rank": 0, "world_size": 2, "batch_sampler": [[1]]}, "with a batch_sampler"),
        ({"rank": 0, "world_size": 2, "sampler": [1]}, "a DistributedSampler shares the epoch itself"),
        ({"rank": "auto", "shuffle": True, "generator": torch.Generator()}, "seed=… gives one"),
    ],
)
def test_what_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(headrace.ConfigError, match=message):
        headrace.DataLoader(Numbers(N), **settings)


def test_streams_share_themselves() -> None:
    with pytest.raises(headrace.ConfigError, match="an IterableDataset, which must do that itself"):
        headrace.DataLoader(Stream(3), rank=0, world_size=2)


def test_our_orders_can_be_shared() -> None:
    each = [indices(sampler=Shuffled(N), batch_size=N, rank=r, world_size=2) for r in range(2)]
    assert sorted(each[0][0] + each[1][0]) == list(range(N))


@pytest.mark.timeout(280)
@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.long)])
def test_killed_runs_resume_with_other_ranks_and_workers(folder: Path, tmp_path: Path, kills: int) -> None:
    """The sequence of world sizes is 2, 1, 3 and all bytes are compared."""
    script = Path(__file__).with_name("kill_and_resume.py")
    done = run_python(script, folder, tmp_path, kills)
    assert done.returncode == 0, done.stderr
