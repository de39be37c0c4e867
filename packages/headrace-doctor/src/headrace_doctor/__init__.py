"""The doctor: what a training loop waits for, with any torch DataLoader, and what to change."""

from __future__ import annotations

import importlib
import typing

if typing.TYPE_CHECKING:
    from headrace_doctor.errors import ConfigError, DoctorError
    from headrace_doctor.examine import diagnose

__all__ = ["ConfigError", "DoctorError", "diagnose"]

# Imported when they are first asked for: `headrace-doctor --help` needs no torch.
_PLACES = {
    "ConfigError": "headrace_doctor.errors",
    "DoctorError": "headrace_doctor.errors",
    "diagnose": "headrace_doctor.examine",
}


def __getattr__(name: str) -> typing.Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'headrace_doctor' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
