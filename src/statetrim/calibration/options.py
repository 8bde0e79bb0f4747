"""The options of `calibrate`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .. import option_checks as checks
from ..common_options import BATCH_SIZE_HELP, SKIP_HELP, TEXT_HELP, ProgressOptions, parse_names
from ..defaults import RECALL_SHARE
from ..errors import StatetrimError
from ..options import option, options, output_option
from ..runtime.placement import Placement

if TYPE_CHECKING:
    from ..runtime.corpus import Corpus
    from ..storage.models import ModelLike
    from ..storage.text import Sequences


@options
class CalibrateOptions(Placement, ProgressOptions):
    """The options of `calibrate`."""

    text: "str | Path | Corpus | Sequences" = option(
        help=TEXT_HELP, check=checks.text_source, kw_only=False
    )
    out: str | Path | None = output_option(
        default=None, help="File to write the statistics to.", required=True
    )
    methods: Sequence[str] | None = option(
        default=None,
        help="Selection methods to collect statistics for, such as drrqr,grad.",
        flags=("--for",),
        check=checks.methods,
        parse=parse_names,
    )
    original: "ModelLike | None" = option(
        default=None, help="The model before the cut; collects the statistics that refit needs."
    )
    tokens: int | str = option(
        default=2**18,
        default_text="256k",
        help="Number of tokens to run, such as 256k.",
        check=checks.token_count,
    )
    length: int = option(default=512, help="Tokens per sequence.", check=checks.at_least_one)
    batch_size: int = option(default=8, help=BATCH_SIZE_HELP, check=checks.at_least_one)
    skip: int | str = option(default=0, default_text="0", help=SKIP_HELP, check=checks.token_count)
    recall: float | None = option(
        default=None,
        default_text=str(RECALL_SHARE),
        help="Fraction of the tokens that are generated recall sequences.",
        check=checks.fraction,
    )
    seed: int = option(default=0, help="Random seed of the generated sequences.", check=checks.seed)

    def check(self) -> None:
        super().check()
        if self.original is not None and self.methods:
            raise StatetrimError("with --original the sums are those of a refit; leave out --for")
