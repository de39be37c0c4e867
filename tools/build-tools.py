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
ROOT = Path(__file__).resolve().parent.parent
PYPROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("packages/*/pyproject.toml"))]


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
    """The requirements in the tables `name = […]`; Python 3.10 has no tomllib yet."""
    texts = [path.read_text(encoding="utf-8") for path in PYPROJECTS]
    found = []
    for name in names:
        pattern = re.compile(rf"^{name} = \[(.*?)\]$", re.MULTILINE | re.DOTALL)
        tables = [table for text in texts if (table := pattern.search(text))]
        if not tables:
            sys.exit(f"No pyproject.toml has a list named {name!r}")
        found += [each for table in tables for each in re.findall(r'"([^"]+)"', table.group(1))]
    return found


if __name__ == "__main__":
    names = {"--extras": ["dependencies", *sys.argv[2:]], "--only": sys.argv[2:]}.get("".join(sys.argv[1:2]))
    print("\n".join(missing_tools() if names is None else requirements(names)))
