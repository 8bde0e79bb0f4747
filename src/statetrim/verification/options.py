"""The options of `verify`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import option_checks as checks
from ..common_options import SKIP_HELP, TEXT_HELP, ProgressOptions, parse_named_values
from ..errors import StatetrimError
from ..maths.formatting import choices_text
from ..options import option, options, output_option
from ..serving.engines import named_engines

if TYPE_CHECKING:
    from ..storage.models import ModelLike

DRIVEN = {key: engine for key, engine in named_engines().items() if engine.driver}
_DTYPES = ", ".join(f"{engine.name}: {engine.dtype}" for engine in DRIVEN.values() if engine.dtype)


@options
class VerifyOptions(ProgressOptions):
    """The options of `verify`."""

    baseline: "ModelLike" = option(help="The model before the cut.", in_record=False)
    engine: str = option(help=f"{choices_text(DRIVEN)}.", check=checks.one_of(*DRIVEN))
    engine_python: str | Path | None = option(
        default=None,
        help="Python executable of the engine's environment; by default of this one.",
        parse=Path,
        in_record=False,
    )
    text: str | Path = option(help=TEXT_HELP, check=checks.text_source)
    out: str | Path | None = output_option(default=None, help="JSON file to write.", required=True)
    count: int = option(
        default=24, help="Number of sequences to compare.", check=checks.at_least_one
    )
    length: int = option(default=200, help="Tokens per sequence.")
    generate: int = option(
        default=32,
        help="Tokens to generate after the first half of each sequence.",
        check=checks.at_least_one,
    )
    skip: int | str = option(default=0, default_text="0", help=SKIP_HELP, check=checks.token_count)
    dtype: str | None = option(
        default=None,
        help=f"float32, float16 or bfloat16; by default as stored ({_DTYPES}).",
        check=checks.one_of("float32", "float16", "bfloat16"),
    )
    engine_options: Mapping[str, Any] | None = option(
        default=None,
        help="NAME=VALUE for the engine, such as tensor_parallel_size=2.",
        flags=("--engine-option",),
        parse=parse_named_values,
    )
    seconds: float = option(
        default=3600.0, help="Time limit per model, in seconds.", in_record=False
    )

    def check(self) -> None:
        """Raise StatetrimError for a length or a time that leaves nothing to do."""
        if not self.seconds > 0:
            raise StatetrimError(f"an engine needs some seconds for a model, not {self.seconds:g}")
        if self.length < 4:
            raise StatetrimError(f"a sequence of {self.length} tokens is too short; take 4 or more")
