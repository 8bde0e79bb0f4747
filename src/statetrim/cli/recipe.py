"""statetrim recipe"""

from pathlib import Path
from typing import Annotated

import typer

from .app import app


@app.command()
def recipe(
    result: Annotated[Path, typer.Argument(help="Output directory of trim or of a sweep.")],
) -> None:
    """Print the options that produced a result, as a recipe for trim --recipe."""
    from ..console.recipe import show_recipe
    from ..pipelines.recipe import recipe_of_result

    show_recipe(recipe_of_result(result), str(result))
