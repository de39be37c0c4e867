"""The public surface: nothing more, nothing less, and cheap to import."""

from __future__ import annotations

import doctest
import subprocess
import sys
from types import ModuleType

import pytest

import headrace
import headrace.export
import headrace.loader
import headrace.testing
from headrace._native import ffi
from headrace._native.decoders import FORMATS


def public_names(module: ModuleType) -> list[str]:
    return sorted(
        n for n, v in vars(module).items() if not n.startswith("_") and not isinstance(v, ModuleType)
    )


def test_all_is_sorted_and_complete() -> None:
    assert [name for name in dir(headrace) if name in headrace.__all__] == headrace.__all__
    for name in headrace.__all__:
        getattr(headrace, name)  # imported when it is asked for
    assert headrace.__all__ == public_names(headrace)
    for name in headrace.export.__all__:
        getattr(headrace.export, name)  # the same
    assert headrace.export.__all__ == public_names(headrace.export)
    assert headrace.testing.__all__ == public_names(headrace.testing)
    assert len(headrace.__all__) <= 20


def test_names_that_moved_say_what_to_use() -> None:
    with pytest.raises(AttributeError, match=r"headrace_doctor\.diagnose \(pip install headrace-doctor\)"):
        _ = headrace.diagnose


IMPORTS = """
import sys
import headrace.engine.workers.pool, torch  # as a worker process does
print(*sys.modules)
print(open("/proc/self/maps").read(), torch.cuda.is_initialized())
from headrace import decode_image
print(sys.modules.keys() & {"headrace.loader", "headrace.transforms"})
"""


def test_importing_brings_little_but_torch_loads_no_native_library_and_starts_no_cuda() -> None:
    command = [sys.executable, "-c", IMPORTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    modules, *rest = done.stdout.splitlines()
    assert {"torchvision", "PIL", "pyarrow", "rich", "psutil"}.isdisjoint(modules.split())
    assert "libheadrace" not in "".join(rest)
    assert [rest[-2].split()[-1], rest[-1]] == ["False", "set()"]


def test_the_example_in_the_docstring_works() -> None:
    result = doctest.testmod(headrace.loader)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_decoders_that_can_be_asked_for_are_those_there_are() -> None:
    asked = [name for names in FORMATS.values() for name in names]
    built = ffi.decoder_names()  # libdeflate and libwebp only where they were found
    assert built == tuple(name for name in asked if name in built)
    assert set(FORMATS["JPEG"]) <= set(built)
