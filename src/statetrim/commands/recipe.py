"""statetrim recipe"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer


def recipe(
    result: Annotated[Path, typer.Argument(help="Output directory of trim.")],
) -> None:
    from ..pipelines.recipe import recipe_of_result

    show_recipe(recipe_of_result(result), str(result))


def show_recipe(recipe: Mapping[str, Any], name: str) -> None:
    """Print a recipe as YAML to standard output, and not to the log."""
    from ..pipelines.recipe import recipe_text

    print(recipe_text(recipe, name), end="")
