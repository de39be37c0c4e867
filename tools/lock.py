"""Prints the versions that are installed of everything that this project needs, as pip takes them by `-c`.

    python tools/lock.py > tools/constraints.txt

What goes with torch's version isn't among them: the tests run with the oldest torch and with the newest.
"""

import importlib.util
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Chosen by whoever runs the tests, and what comes with them.
FREE = re.compile(
    r"torch|torchcodec|torchvision|pillow|triton|nvidia-(?!ml-py).*|cuda-.*|sympy|mpmath|networkx|setuptools"
)
EXTRAS = ["dev", "demo", "docs", "lmdb", "metrics", "remote", "tensorboard"]


def listed() -> list[str]:
    """The requirements that pyproject.toml lists."""
    place = Path(__file__).with_name("build-tools.py")
    spec = importlib.util.spec_from_file_location("build_tools", place)
    assert spec is not None
    assert spec.loader is not None
    tools = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tools)
    return ["hatchling", "scikit-build-core", *tools.requirements(["dependencies", *EXTRAS])]


def names() -> set[str]:
    """The packages that are listed and whose versions are locked."""
    return {
        name for text in listed() if not FREE.fullmatch(name := canonicalize_name(Requirement(text).name))
    }


def needed(texts: list[str]) -> Iterator[tuple[str, str]]:
    """(name, version) of all that is installed for these requirements."""
    open_, seen = [(Requirement(text), frozenset[str]()) for text in texts], set[tuple[str, frozenset[str]]]()
    while open_:
        requirement, asked = open_.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
        # Which extras its dependent was asked for.
        applies = requirement.marker is None or any(
            requirement.marker.evaluate({"extra": extra}) for extra in asked or {""}
        )
        if (name, extras) in seen or not applies:
            continue
        seen.add((name, extras))
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # an option of another package
        if not FREE.fullmatch(name):
            yield name, found.version
        open_ += [(Requirement(text), extras) for text in found.requires or ()]


def main() -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    print(f"# Made by `make lock`, for Python {version}.")
    for name, found in sorted(set(needed(listed()))):
        print(f"{name}=={found}")


if __name__ == "__main__":
    main()
