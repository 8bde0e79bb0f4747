"""The options of `benchmark`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import option_checks as checks
from ..common_options import ProgressOptions, parse_names
from ..errors import StatetrimError
from ..maths.units import parse_token_count
from ..options import option, options, output_option
from ..runtime.placement import Devices

if TYPE_CHECKING:
    from ..storage.models import ModelLike

_MAX_COUNT = 2**20  # of sequences, and of tokens


def _parse_counts(text: str) -> list[int]:
    return [parse_token_count(count) for count in parse_names(text)]


def _counts(name: str, counts: Sequence[int | str]) -> None:
    for count in map(parse_token_count, counts):
        if not 1 <= count <= _MAX_COUNT:
            raise StatetrimError(f"{name} are between 1 and {_MAX_COUNT}, not {count}")


@options
class BenchmarkOptions(Devices, ProgressOptions):
    """The options of `benchmark`."""

    baseline: "ModelLike" = option(help="The model before the cut.", in_record=False)
    out: str | Path | None = output_option(default=None, help="JSON file to write.", required=True)
    batches: Sequence[int] | None = option(
        default=None,
        help="Batch sizes, such as 1,16,64; on a GPU 32 by default, as in the paper.",
        flags=("--batch-sizes",),
        parse=_parse_counts,
        check=_counts,
    )
    lengths: Sequence[int | str] | None = option(
        default=None,
        help="Tokens per prompt, such as 256,2k; on a GPU 2k by default.",
        parse=_parse_counts,
        check=_counts,
    )
    rounds: int = option(
        default=7, help="Rounds per model; the models take turns.", check=checks.at_least_one
    )
