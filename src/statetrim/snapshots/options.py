"""The options of `snapshot`."""

from pathlib import Path
from typing import TYPE_CHECKING

from .. import option_checks as checks
from ..common_options import BATCH_SIZE_HELP, SKIP_HELP, TEXT_HELP, ProgressOptions
from ..errors import StatetrimError
from ..options import option, options, output_option
from ..runtime.placement import OneDevice

if TYPE_CHECKING:
    from ..artifacts.statistics import Statistics


def parse_tolerances(text: str) -> tuple[float, ...]:
    """ "0.02,0.1" -> (0.02, 0.1)."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise StatetrimError(f"{text[:40]!r} are not tolerances; write them as 0.02,0.1") from None


@options
class SnapshotOptions(OneDevice, ProgressOptions):
    """What `snapshot` reads and codes: `sequences` of the text, after `skip` tokens; of each the
    first `length` tokens are the prompt whose states are coded, and as many more are read on."""

    text: str | Path = option(help=TEXT_HELP, check=checks.text_source)
    statistics: "Statistics | str | Path | None" = option(
        default=None, help="Statistics of `calibrate`: the metric of errors.", in_record=False
    )
    tolerances: tuple[float, ...] = option(
        default=(0.02, 0.05, 0.1),
        default_text="0.02,0.05,0.1",
        parse=parse_tolerances,
        help="Largest relative error of a head's state, one or several.",
    )
    sequences: int = option(default=16, help="Number of sequences.", check=checks.at_least_one)
    length: int = option(
        default=256, help="Tokens before and after the copy.", check=checks.at_least_one
    )
    batch_size: int = option(
        default=8, help=BATCH_SIZE_HELP, check=checks.at_least_one, in_record=False
    )
    skip: int | str = option(default=0, default_text="0", help=SKIP_HELP, check=checks.token_count)
    out: str | Path | None = output_option(default=None, help="JSON file to write.")

    def check(self) -> None:
        super().check()
        if not self.tolerances or not all(0 < value < 1 for value in self.tolerances):
            listed = ", ".join(map(str, self.tolerances)) or "none"
            raise StatetrimError(f"tolerances must lie between 0 and 1, not {listed[:60]}")
        if self.length < 4:
            raise StatetrimError(f"prompts of {self.length} tokens are too short; take 4 or more")
