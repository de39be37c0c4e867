"""Tiny data, and what tests of the recipe leave as it was."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from headrace.recipes.ranks import SIGNALS
from support import tiny_recipe as tiny


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.data(tmp_path_factory.mktemp("data"))


@pytest.fixture(autouse=True)
def same_bits() -> Iterator[None]:
    threads, handlers = torch.get_num_threads(), {number: signal.getsignal(number) for number in SIGNALS}
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    yield
    tiny.before_pass.clear()
    tiny.before_evaluation_pass.clear()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    for number, handler in handlers.items():
        signal.signal(number, handler)
