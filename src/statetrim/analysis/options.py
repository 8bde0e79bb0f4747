"""The options of `analyze`, `analyze_memory` and `sensitivity`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import option_checks as checks
from ..common_options import BATCH_SIZE_HELP, METHODS_HELP, SKIP_HELP, TEXT_HELP, ProgressOptions
from ..defaults import DEFAULT_METHODS
from ..errors import StatetrimError
from ..options import option, options
from ..runtime.placement import Placement

if TYPE_CHECKING:
    from ..runtime.corpus import Corpus
    from ..storage.models import ModelLike


def _check_stride(name: str, tokens: int) -> None:
    if tokens not in (1, 2, 4, 8, 16, 32, 64):
        raise StatetrimError(f"{name} must be a power of two, at most 64, not {tokens}")


@options
class AnalyzeOptions(Placement, ProgressOptions):
    """The options of `analyze`."""

    text: str | Path = option(help=TEXT_HELP, check=checks.text_source, kw_only=False)
    tokens: int | str = option(
        default=2**14,
        default_text="16k",
        help="Number of tokens to run, such as 16k.",
        check=checks.token_count,
    )
    baseline: "ModelLike | None" = option(
        default=None, help="The model before the cut, run on the same text.", in_record=False
    )
    length: int | None = option(
        default=None,
        help="Tokens per sequence; by default 2048, with --sensitivity 256.",
        check=checks.at_least_one,
    )
    every: int = option(
        default=64,
        help="Tokens between two sampled states: a power of two, at most 64.",
        check=_check_stride,
    )
    burn_in: int = option(
        default=128, help="Tokens at the start of each sequence to leave out of spectra and means."
    )
    batch_size: int = option(default=1, help=BATCH_SIZE_HELP, check=checks.at_least_one)
    skip: int | str = option(default=0, default_text="0", help=SKIP_HELP, check=checks.token_count)
    state_dtype: str = option(
        default="float32",
        help="Store states in bfloat16, float16, float8_e4m3fn or int8, as an engine would, and "
        "analyze those.",
    )


@options
class MemoryOptions(Placement, ProgressOptions):
    """The options of `analyze_memory`."""

    text: str | Path = option(help=TEXT_HELP, check=checks.text_source, kw_only=False)
    tokens: int | str = option(
        default=2**14, help="Number of tokens to run.", check=checks.token_count
    )
    length: int = option(default=2048, help="Tokens per window.", check=checks.at_least_one)
    rows: int = option(default=32, help="Recall sequences of each load.", check=checks.at_least_one)
    skip: int | str = option(default=0, default_text="0", help=SKIP_HELP, check=checks.token_count)
    batch_size: int = option(default=1, help=BATCH_SIZE_HELP, check=checks.at_least_one)
    out: str | Path | None = option(default=None, help="JSON file to write.")


@options
class SensitivityOptions(Placement, ProgressOptions):
    """The options of `sensitivity`."""

    text: "str | Path | Corpus" = option(help=TEXT_HELP, check=checks.text_source, kw_only=False)
    widths: Sequence[int | float | str] = option(
        default=(0.5, 0.25), help="Channels to keep in the layer that is cut."
    )
    method: str = option(default=DEFAULT_METHODS, help=METHODS_HELP, check=checks.methods)
    calibration_tokens: int = option(default=2**15, help="Tokens to choose channels on.")
    windows: int = option(default=64, help="Windows of text to measure.")
    length: int = option(default=256, help="Tokens per window.", check=checks.at_least_one)
    rows: int = option(default=32, help="Recall sequences of each load.")
    skip: int | str = option(default=0, default_text="0", help=SKIP_HELP, check=checks.token_count)
    batch_size: int = option(default=8, help=BATCH_SIZE_HELP, check=checks.at_least_one)
    out: str | Path | None = option(default=None, help="JSON file to write.")
