"""statetrim recipe"""

from pathlib import Path
from typing import Annotated

import typer


def recipe(
    result: Annotated[Path, typer.Argument(help="Output directory of trim.")],
) -> None:
    from ..pipelines.recipe import recipe_of_result, recipe_text

    print(recipe_text(recipe_of_result(result), str(result)), end="")
