"""The scenarios: ordinary training scripts, most with a planted fault, and the lines that remove it.

python benchmarks/stalls/scenario.py NAME [--fixed] > train.py
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for `machine` and `pictures`

import slow_mount
import training_data

FOLDER = Path(__file__).resolve().parent / "scenarios"
# The families about loading, with which an answer of the kind "loading" agrees; and those about the step.
LOADING = ("reading", "decoding", "augmentation", "dataset", "sampler", "collation", "transport", "workers")
LOADING += ("memory", "locks", "startup", "evaluation")
STEP = ("step", "checkpoints", "logging", "recompilation")
FAMILIES = (*LOADING, *STEP, "healthy", "unknown")
# The kinds of cause, of each family.
KINDS = {
    "read": "reading",
    "decode": "decoding",
    "transform": "augmentation",
    "dataset": "dataset",
    "sampler": "sampler",
    "collate": "collation",
    "transfer": "transport",
    "pin": "transport",
    "copy": "transport",
    "workers": "workers",
    "straggler": "workers",
    "oversubscribed": "workers",
    "cores": "workers",
    "memory": "memory",
    "lock": "locks",
    "gil": "locks",
    "startup": "startup",
    "validation": "evaluation",
    "synchronise": "step",
    "gc": "step",
    "checkpoint": "checkpoints",
    "logging": "logging",
    "recompile": "recompilation",
    "healthy": "healthy",
    "unexplained": "unknown",
    "undecided": "unknown",
}
HEADER = re.compile(r'\A"""(?s:.*?)"""\n\n((?:#.*\n)+)')


@dataclass(frozen=True)
class Scenario:
    """A script of `scenarios/FAMILY/`, described by the comments below its docstring (see README.md)."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.stem

    @property
    def family(self) -> str:
        return self.path.parent.name

    @cached_property
    def _parts(self) -> tuple[str, str]:
        """(The lines of the header, the script with blank lines in the place of docstring and header)."""
        source = self.path.read_text(encoding="utf-8")
        header = HEADER.match(source)
        if header is None:
            raise ValueError(f"{self.path} doesn't begin with a docstring, a blank line and a header")
        return header[1], "\n" * header[0].count("\n") + source[header.end() :]

    def field(self, name: str) -> str:
        """The value of the header's line "# name: VALUE", or "" if there is none."""
        match = re.search(rf"^# {name}: (.+)$", self._parts[0], re.MULTILINE)
        return match[1] if match else ""

    def alternatives(self, name: str) -> list[str]:
        """The texts of a field that are divided by " | "."""
        return [text for text in self.field(name).split(" | ") if text]

    @property
    def expected(self) -> tuple[str, ...]:
        """Kinds of cause of which each is right."""
        return tuple(self.field("expected").split())

    @property
    def fix(self) -> list[tuple[str, str]]:
        """(Lines of the script, the lines in their place) of each exchange that removes the fault."""
        _, _, lines = self._parts[0].partition("# fix:\n")
        exchanges = []
        for exchange in lines.split("#\n"):
            sides = ["".join(re.findall(rf"^# \{sign}(.*\n)", exchange, re.MULTILINE)) for sign in "-+"]
            exchanges += [(sides[0], sides[1])] if sides[0] else []
        return exchanges

    def script(self, fixed: bool = False) -> str:
        """The script as an entrant gets it: without docstring and header, which name the fault."""
        source = self._parts[1]
        for old, new in self.fix if fixed else ():
            if source.count("\n" + old) != 1:
                count = source.count("\n" + old)
                raise ValueError(f"{self.path} has these lines {count} times instead of once:\n{old}")
            source = source.replace("\n" + old, "\n" + new)
        return source

    def missing(self) -> str:
        """The reason why it can't be run here, or ""."""
        for need in self.field("needs").split():
            if need == "cuda" and not torch.cuda.is_available():
                return "no CUDA device"
            if need != "cuda" and importlib.util.find_spec(need) is None:
                return f"{need} isn't installed"
        return slow_mount.missing() if self.field("mount") else ""

    def mounted(self, data: Path, fixed: bool = False) -> AbstractContextManager[Path]:
        """Gives the folder or file for --data, made first if it isn't there, until the block ends."""
        name = (fixed and self.field("fixed data")) or self.field("data")
        path = training_data.ensure(data, name)
        slow = self.field("mount") and not fixed
        return slow_mount.mounted(path, float(self.field("mount").split()[0])) if slow else nullcontext(path)


SCENARIOS = tuple(
    Scenario(path) for family in FAMILIES for path in sorted(FOLDER.joinpath(family).glob("*.py"))
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=[one.name for one in SCENARIOS])
    parser.add_argument("--fixed", action="store_true", help="without its fault")
    arguments = parser.parse_args()
    scenario = next(one for one in SCENARIOS if one.name == arguments.name)
    sys.stdout.write(scenario.script(arguments.fixed))


if __name__ == "__main__":
    main()
