"""Headrace in place of torch's DataLoader in a whole program, without changing its imports.

torch's class keeps its name and its place: only what calling it creates is different. So code that has
imported `DataLoader` already gets Headrace's loaders, `isinstance(loader, torch.utils.data.DataLoader)` stays
true, and classes that other libraries derive from torch's are left alone.
"""

from __future__ import annotations

import gc
import importlib
from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError

__all__ = ["install", "uninstall"]

# An environment variable that `headrace run` sets for the processes of its command: what their loaders do.
VARIABLE = "HEADRACE_RUN"

_installed = False
# Called with the class of a loader that is created, if it is derived from torch's DataLoader.
on_other_class: Callable[[type], None] | None = None


def install() -> None:
    """Makes `torch.utils.data.DataLoader(...)` create a `headrace.DataLoader`, in this process and in those
    that are forked from it.

    Replaces what calling torch's class creates, and nothing else: names that were imported before mean the
    same class and create Headrace's loaders, too. Classes that are derived from torch's (by torch_geometric
    or torchdata, for example) are left alone. Arguments mean what they mean for `headrace.DataLoader`, but
    without `num_workers` a dataset that runs as Python is loaded in the calling thread, as in torch. Calling
    it again changes nothing; `uninstall()` undoes it.

    Raises:
        ConfigError: a loader of torch's exists already, which would stay as it is. Call `install()` at the
            top of the program.

    Examples:
        >>> import headrace, torch
        >>> headrace.install()
        >>> loader = torch.utils.data.DataLoader(range(6), batch_size=4, num_workers=0)
        >>> type(loader).__module__
        'headrace.loader'
        >>> headrace.uninstall()
    """
    from torch.utils.data import DataLoader

    if not _installed:
        gc.collect()  # a loader that only a cycle of references holds is no longer used
        if existing := sum(type(thing) is DataLoader for thing in gc.get_objects()):
            raise ConfigError(
                f"{existing} DataLoader(s) of torch's exist already and would stay as they are. Call"
                " headrace.install() at the top of the program, before it creates any."
            )
    replace(DataLoader)


def uninstall() -> None:
    """Makes `torch.utils.data.DataLoader(...)` create torch's loaders again. Loaders that exist stay."""
    global _installed
    _installed = False


def replace(cls: type, module: str = "headrace.loader") -> None:
    """Makes torch's DataLoader, given as `cls`, create loaders of a module's class `ReplacingDataLoader`."""
    global _installed
    _installed = True

    def create(created: type, *args: Any, **kwargs: Any) -> Any:
        # Without arguments it is a copy or a pickle that is being restored.
        if _installed and (args or kwargs):
            if created is cls:
                created = importlib.import_module(module).ReplacingDataLoader
            elif on_other_class is not None:
                on_other_class(created)
        return object.__new__(created)

    # It is never removed again: `object.__new__` refuses the arguments of a class that once had its own.
    if "__new__" not in cls.__dict__:
        cls.__new__ = staticmethod(create)  # type: ignore[assignment, method-assign]
