"""Imported by Python as it starts, in the processes of `headrace run`, which adds this folder to PYTHONPATH.

Replaces torch's DataLoader as soon as torch is imported. Importing torch here would take seconds in processes
that do not need it. Headrace is imported no earlier, so that other Python environments start as usual.
"""

import importlib
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from types import ModuleType

LOADER_MODULE = "torch.utils.data.dataloader"


class ReplacingLoader(importlib.abc.Loader):
    """Executes the module that defines torch's DataLoader, and replaces what calling the class creates."""

    def __init__(self, original: importlib.abc.Loader) -> None:
        self._original = original

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Creates the module as usual."""
        return self._original.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Executes the module as usual, and replaces what its DataLoader creates if Headrace is installed."""
        self._original.exec_module(module)
        try:
            from headrace.replacement import replace
        except ModuleNotFoundError:
            sys.stderr.write(f"headrace run: {sys.executable} has no Headrace: its loaders are torch's.\n")
        else:
            replace(module.DataLoader, "headrace.run")


class Finder(importlib.abc.MetaPathFinder):
    """Finds the module that defines torch's DataLoader, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the module's usual specification with another loader, or None for all other modules."""
        if name != LOADER_MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = ReplacingLoader(spec.loader)
        return spec


def import_shadowed() -> None:
    """Imports the `sitecustomize` that Python would have imported without this folder, if there is one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    own = sys.modules.pop("sitecustomize")
    try:
        importlib.import_module("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name != "sitecustomize":
            raise
        sys.modules["sitecustomize"] = own


sys.meta_path.insert(0, Finder())
import_shadowed()
