"""Prints pip requirements that the Makefile installs.

Without options: cmake and ninja, each only where the machine lacks a usable one.
With --extras NAME…: the package's own dependencies and those extras, as pyproject.toml lists them, so that
they can be installed (and cached) before the package itself is built. With --only NAME…: those extras alone.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

CMAKE_MINIMUM = (3, 20)
PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def missing_tools() -> list[str]:
    """The build tools to take from PyPI."""
    wanted = []
    cmake = shutil.which("cmake")
    if cmake is None or cmake_version(cmake) < CMAKE_MINIMUM:
        wanted.append("cmake")
    if shutil.which("ninja") is None:
        wanted.append("ninja")
    return wanted


def cmake_version(cmake: str) -> tuple[int, ...]:
    text = subprocess.run([cmake, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", text)
    return tuple(int(part) for part in found.groups()) if found else (0, 0)


def requirements(names: list[str]) -> list[str]:
    """Of the tables `name = […]`; Python 3.10 has no tomllib yet."""
    text = PYPROJECT.read_text(encoding="utf-8")
    found = []
    for name in names:
        table = re.search(rf"^{name} = \[(.*?)\]$", text, re.MULTILINE | re.DOTALL)
        if table is None:
            sys.exit(f"pyproject.toml has no list named {name!r}")
        found += re.findall(r'"([^"]+)"', table.group(1))
    return found


if __name__ == "__main__":
    names = {"--extras": ["dependencies", *sys.argv[2:]], "--only": sys.argv[2:]}.get("".join(sys.argv[1:2]))
    print("\n".join(missing_tools() if names is None else requirements(names)))
