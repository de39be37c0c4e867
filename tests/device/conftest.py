from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture
def gpu() -> torch.device:
    """The current accelerator. Without one the test is skipped; with HEADRACE_REQUIRE_GPU set it fails."""
    if not torch.accelerator.is_available():
        if os.environ.get("HEADRACE_REQUIRE_GPU"):
            pytest.fail("HEADRACE_REQUIRE_GPU is set, and torch finds no accelerator")
        pytest.skip("no accelerator")
    kind = torch.accelerator.current_accelerator()
    assert kind is not None
    return torch.device(kind.type, torch.accelerator.current_device_index())
