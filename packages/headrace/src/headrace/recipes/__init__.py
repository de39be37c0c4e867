"""Training recipes, which use nothing but the package's public names; see docs/training.md."""

import typing

from headrace.recipes.config import Recipe

if typing.TYPE_CHECKING:
    from headrace.recipes.loop import Outcome, train

__all__ = ["Outcome", "Recipe", "train"]


def __getattr__(name: str) -> object:
    # The command's --help needs the Recipe, but no torch.
    if name in ("Outcome", "train"):
        from headrace.recipes import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
