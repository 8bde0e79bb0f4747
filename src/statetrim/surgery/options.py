"""The options of `prune` and `refit`."""

from pathlib import Path
from typing import TYPE_CHECKING

from .. import option_checks as checks
from ..common_options import ProgressOptions
from ..defaults import REFIT_DAMPING
from ..errors import StatetrimError
from ..options import option, options, output_option

if TYPE_CHECKING:
    from ..artifacts.plan import Plan
    from ..artifacts.statistics import Statistics


@options
class PruneOptions(ProgressOptions):
    """The options of `prune`."""

    plan: "Plan | str | Path" = option(
        help="A plan that select made for this model.",
        check=checks.existing_file,
        parse=Path,
        argument=True,
        kw_only=False,
    )
    out: str | Path = output_option(help="Output directory.", kw_only=False)
    uneven: bool = option(
        default=False, help="Allow layers of different widths, which stock libraries cannot load."
    )
    state_dtype: str | None = option(
        default=None,
        help="What the config says of the dtype of the state, if it has such a field.",
        flags=(),
    )


@options
class RefitOptions(ProgressOptions):
    """The options of `refit`."""

    statistics: "Statistics | str | Path | None" = option(
        default=None,
        help="Statistics from calibrate --original for this checkpoint.",
        check=checks.existing_file,
        parse=Path,
        kw_only=False,
    )
    out: str | Path = output_option(help="Output directory.")
    damping: float = option(
        default=REFIT_DAMPING, help="Ridge penalty, relative to the mean square of the channels."
    )

    def check(self) -> None:
        if not 0 <= self.damping < 1:
            raise StatetrimError(f"damping must lie between 0 and 1, not {self.damping}")
