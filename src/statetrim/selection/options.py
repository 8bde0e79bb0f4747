"""The options of `select`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import option_checks as checks
from ..common_options import ProgressOptions, parse_named_values, parse_shares
from ..defaults import HEAD_METHOD, KEY_METHOD, VALUE_METHOD
from ..maths.units import Amount
from ..options import option, options

if TYPE_CHECKING:
    from ..artifacts.statistics import Statistics
    from ..methods.contract import Select
    from ..serving.widths import Widths


@options
class SelectOptions(ProgressOptions):
    """The options of `select`."""

    method: "str | Select" = option(
        default=KEY_METHOD,
        help="Selection method for key channels; l1 needs no statistics but loses more.",
        check=checks.method,
        kw_only=False,
    )
    keep: Amount | None = option(
        default=None,
        help="Key channels to keep per head: a count (64) or a fraction (0.5).",
        check=checks.amount,
        kw_only=False,
    )
    keep_values: Amount | None = option(
        default=None,
        help="Value channels to keep per head: a count or a fraction.",
        check=checks.amount,
    )
    square: Amount | None = option(
        default=None,
        help="Key and value channels to keep per head, the same number of each.",
        check=checks.amount,
    )
    widths: "Widths | None" = option(
        default=None,
        help="An uneven cut: key x value channels of each layer, such as 0=64x64,others=32x32.",
    )
    keep_heads: Amount | None = option(
        default=None,
        help="Whole value heads to keep: a count (8) or a fraction. Loses more than "
        "removing channels; for models whose channels cannot be removed.",
        check=checks.amount,
    )
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
