"""Training recipes, written on the package's public names alone; see docs/training.md."""

from headrace.recipes.config import Recipe
from headrace.recipes.loop import Outcome, train

__all__ = ["Outcome", "Recipe", "train"]
