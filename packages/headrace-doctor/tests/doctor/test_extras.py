"""Optional packages are imported where they are used; without them the extra that brings them is named."""

from __future__ import annotations

import os
import sys

import pytest

from headrace.doctor.html import render_html
from headrace.errors import ConfigError
from headrace.measure.processes import look
from support import doctor_records as records
from support.python import run_python


def test_the_package_imports_without_them() -> None:
    without = (
        "import sys; sys.modules.update(dict.fromkeys(['psutil', 'jinja2', 'rich', 'typer', 'pynvml']));"
    )
    code = f"{without} import headrace; headrace.DataLoader; headrace.diagnose"
    run_python(code, fresh=True, check=True)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("jinja2", "psutil", "rich.console"):
        monkeypatch.setitem(sys.modules, module, None)
    for call, name in (
        (lambda: render_html(records.healthy()), "jinja2"),
        (lambda: look(os.getpid()), "psutil"),
        (lambda: str(records.healthy()), "rich"),
    ):
        with pytest.raises(ConfigError, match=rf"package {name}: pip install 'headrace\[doctor\]'"):
            call()
