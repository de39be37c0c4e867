"""What earlier versions saved resumes with the samples that the loader that saved it gave next."""

from __future__ import annotations

import copy
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from support.golden_states import LOADERS, resumed

GOLDEN = Path(__file__).parents[1] / "golden"
SAVED: dict[str, dict[str, Any]] = json.loads(lzma.decompress((GOLDEN / "states.json.xz").read_bytes()))

pytestmark = pytest.mark.filterwarnings(
    "ignore:PlainStream had no state_dict", "ignore:This DataLoader will create"
)


@pytest.mark.parametrize("name", SAVED)
def test_states_of_earlier_versions_resume(name: str) -> None:
    for place, entry in SAVED[name].items():
        assert resumed(LOADERS[name], entry) == entry["rests"], place


@pytest.mark.parametrize("name", SAVED)
def test_states_of_earlier_versions_are_the_same_when_they_are_saved_again(name: str) -> None:
    """Whether they are saved as they were loaded, or once their epoch has started."""
    for place, entry in SAVED[name].items():
        loader = LOADERS[name](0)
        loader.load_state_dict(copy.deepcopy(entry["state"]))
        unstarted = loader.state_dict()
        assert resumed(LOADERS[name], {**entry, "state": unstarted}) == entry["rests"], place
        if place == "between epochs":
            continue
        iterator = iter(loader)
        started = loader.state_dict()
        del iterator
        assert resumed(LOADERS[name], {**entry, "state": started}) == entry["rests"], place
