"""The options of `select`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import option_checks as checks
from ..common_options import METHODS_HELP, ProgressOptions, parse_named_values
from ..cut.request import REQUEST_HELP, To, check_request
from ..defaults import DEFAULT_METHODS
from ..options import option, options

if TYPE_CHECKING:
    from ..artifacts.statistics import Statistics
    from ..methods.contract import Select


@options
class SelectOptions(ProgressOptions):
    """The options of `select`."""

    method: "str | Select | Sequence[str | Select]" = option(
        default=DEFAULT_METHODS, help=METHODS_HELP, check=checks.methods, kw_only=False
    )
    to: To | None = option(default=None, help=REQUEST_HELP, check=check_request, kw_only=False)
    statistics: "Statistics | str | Path | None" = option(
        default=None,
        help="Statistics from calibrate, for methods that need them.",
        check=checks.existing_file,
        parse=Path,
    )
    seed: int = option(default=0, help="Random seed, for methods that use one.", check=checks.seed)
    method_options: Mapping[str, Any] | None = option(
        default=None,
        help="An option of the methods, such as score=q.",
        flags=("--option",),
        parse=parse_named_values,
    )
