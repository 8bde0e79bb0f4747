"""statetrim recipe"""

from pathlib import Path
from typing import Annotated

import typer

from .app import app


@app.command()
def recipe(
    result: Annotated[Path, typer.Argument(help="What trim or a sweep made.")],
) -> None:
    """Print the recipe that made a result, for trim --recipe."""
    from ..console.recipe import show_recipe
    from ..pipelines.recipe import recipe_of

    show_recipe(recipe_of(result), str(result))
