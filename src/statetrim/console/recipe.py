"""What a person sees of `recipe`: a file."""

from collections.abc import Mapping
from typing import Any

from ..pipelines.recipe import recipe_text


def show_recipe(recipe: Mapping[str, Any], name: str) -> None:
    print(recipe_text(recipe, name), end="")
