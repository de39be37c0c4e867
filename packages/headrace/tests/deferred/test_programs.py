"""User code drawn by chance gives the same on deferred images as without: values, errors, draws."""

from __future__ import annotations

import os
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import headrace
from support.deferred_images import with_recording
from support.deferred_programs import SAMPLES, Programs, collate, results

# For a longer run by hand: HEADRACE_PROGRAMS=5000.
COUNT = int(os.environ.get("HEADRACE_PROGRAMS", "60"))


@settings(max_examples=COUNT, derandomize=COUNT == 60)
@given(program=st.integers(0, 2**32 - 1))
def test_a_program_gives_the_same_where_transforms_record(program: int) -> None:
    wanted = results([program])
    assert with_recording(lambda: results([program]))[0] == wanted


def test_programs_give_the_same_by_both_loaders() -> None:
    def batches(loader: type[DataLoader[Any]], **options: Any) -> list[Any]:
        torch.manual_seed(0)
        dataset = Programs(range(COUNT))
        return list(loader(dataset, SAMPLES, collate_fn=collate, num_workers=1, **options))

    wanted = batches(DataLoader)
    assert batches(headrace.DataLoader) == wanted
    assert batches(headrace.DataLoader, deferred=False) == wanted
