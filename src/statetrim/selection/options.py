"""The options of `select`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import option_checks as checks
from ..common_options import ProgressOptions, parse_named_values, parse_shares
from ..defaults import HEAD_METHOD, KEY_METHOD, VALUE_METHOD
from ..options import option, options
from ..request import REQUEST_HELP, To, check_request

if TYPE_CHECKING:
    from ..artifacts.statistics import Statistics
    from ..methods.contract import Select


@options
class SelectOptions(ProgressOptions):
    """The options of `select`."""

    method: "str | Select" = option(
        default=KEY_METHOD,
        help="Selection method for key channels; l1 needs no statistics but loses more.",
        check=checks.method,
        kw_only=False,
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
        help="An option of the method, such as score=q.",
        flags=("--option",),
        parse=parse_named_values,
    )
    value_method: "str | Select" = option(
        default=VALUE_METHOD,
        help="Selection method for value channels; readout_l1 needs no statistics.",
        check=checks.method,
    )
    value_options: Mapping[str, Any] | None = option(
        default=None,
        help="An option of the value method.",
        flags=("--value-option",),
        parse=parse_named_values,
    )
    head_method: "str | Select" = option(
        default=HEAD_METHOD, help="Selection method for whole heads.", check=checks.method
    )
    shares: Mapping[str, float] | None = option(
        default=None,
        help="Weight of one source of the statistics, such as recall=0.5.",
        flags=("--share",),
        parse=parse_shares,
    )
