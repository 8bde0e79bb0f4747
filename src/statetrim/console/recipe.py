"""Console output of `recipe`."""

from collections.abc import Mapping
from typing import Any

from ..pipelines.recipe import recipe_text


def show_recipe(recipe: Mapping[str, Any], name: str) -> None:
    """Print a recipe as YAML to standard output, and not to the log."""
    print(recipe_text(recipe, name), end="")
