"""The options of `trim` and `estimate`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from .. import option_checks as checks
from ..common_options import BATCH_SIZE_HELP, METHODS_HELP, ProgressOptions
from ..cut.request import REQUEST_HELP, Request, To, check_request, parse_request
from ..defaults import DEFAULT_METHODS, RECALL_SHARE
from ..errors import StatetrimError
from ..maths.formatting import choices_text
from ..options import option, options, output_option
from ..runtime.placement import Devices
from ..serving.engines import find_engine, named_engines
from ..serving.engines.engine import Engine
from ..serving.options import CacheOptions, ServingOptions

if TYPE_CHECKING:
    from .stage import Observer

DEFAULT_SHARE = 0.5  # of the state's bytes, if the options name only an engine
PLACEMENT_OPTIONS = ("device", "device_map", "max_memory")
"""The options that say where models run; they do not change the result."""


@options
class TrimOptions(CacheOptions, Devices):
    """Every option of `trim` that affects the result, or where it runs."""

    PANELS: ClassVar[Mapping[str, str]] = {
        "What to keep": "to for_ by_layer",
        "Text and methods": "text tokens recall method length batch_size seed",
        "Repair after the cut": "refit recover",
        "What is measured": "tasks data limit control benchmark state_dtype",
        "How it is served": "memory_gib context kv_dtype speculative prefix_caching devices",
        "Where it runs": "device dtype device_map max_memory layerwise",
    }
    """Headings of the help, in this order, and the options below each; others follow."""

    to: To | None = option(default=None, help=REQUEST_HELP, check=check_request)
    for_: str | None = option(
        default=None,
        help=f"Allow only shapes that this engine serves: {choices_text(named_engines())}.",
    )
    by_layer: bool = option(
        default=False,
        help="Also compare widths by layer, which vLLM and MLX-LM serve with a plugin.",
    )
    text: str | Path = option(
        default="HuggingFaceFW/fineweb-edu",
        help="Text to calibrate, recover and evaluate on: a file, folder or hub dataset.",
        check=checks.text_source,
    )
    tokens: int | str = option(
        default=2**18,
        default_text="256k",
        help="Number of tokens to calibrate on.",
        check=checks.token_count,
    )
    recall: float = option(
        default=RECALL_SHARE,
        help="Fraction of these tokens that are generated recall sequences.",
        check=checks.fraction,
    )
    method: str = option(default=DEFAULT_METHODS, help=METHODS_HELP, check=checks.methods)
    refit: bool | None = option(
        default=None,
        help="Refit the output projections; by default only if values or heads are cut.",
    )
    recover: int | str = option(
        default=0,
        default_text="0",
        help="Tokens to train on after the cut, such as 64m; 0 for no training.",
        check=checks.token_count,
    )
    tasks: Sequence[str] = option(
        default=("text", "mqar"),
        help="Tasks to measure, also those of lm-eval, separated by commas.",
        check=checks.tasks,
    )
    data: str | Path | None = option(
        default=None, help="Definitions and rows of lm-eval's tasks, as in evaluate.", parse=Path
    )
    limit: int = option(default=128, help="Samples per task, at most.", check=checks.at_least_one)
    length: int = option(default=512, help="Tokens per sequence.", check=checks.at_least_one)
    batch_size: int = option(default=8, help=BATCH_SIZE_HELP, check=checks.at_least_one)
    control: bool = option(
        default=True, help="Do not measure random cuts for comparison.", flags=("--no-control",)
    )
    benchmark: bool = option(
        default=False, help="Also compare speed and memory.", flags=("--benchmark",)
    )
    layerwise: bool | None = option(
        default=None,
        help="Stream weights from disk; by default only if memory is short.",
        flags=("--layerwise",),
    )
    state_dtype: str | None = option(
        default=None,
        help="Measure the cut with states stored in bfloat16, float16, float8_e4m3fn or int8, as "
        "an engine would store them; the original keeps float32.",
    )
    seed: int = option(default=0, help="Random seed.", check=checks.seed)

    def check(self) -> None:
        """Raise StatetrimError for a placement, a state dtype or an engine that is not valid, and
        for widths by layer without a share or an engine that serves them."""
        super().check()
        engine = find_engine(self.for_)
        if self.state_dtype is not None:
            from ..runtime.states import StateStorage  # imports torch

            StateStorage(self.state_dtype)
        if self.by_layer and not self.request.is_goal:
            raise StatetrimError("--by-layer chooses widths for a goal: --to 0.5, or --to 2x")
        if self.by_layer and not engine.plugin_types:
            raise StatetrimError(
                f"{engine.name} has no plugin for widths by layer: omit --by-layer"
            )
        self.counted_in.check()

    @property
    def engine(self) -> Engine:
        """The engine of `for_`, or the default."""
        return find_engine(self.for_)

    @property
    def counted_in(self) -> ServingOptions:
        """How the sequences of a cut are counted: in the engine of `for_`, or in the default."""
        return self.in_engine(self.engine)

    @property
    def request(self) -> Request:
        """What to keep; half of the bytes if only an engine is named. Raises StatetrimError if the
        options do not say it."""
        if self.to is None and self.for_ is None:
            raise StatetrimError("say what to keep: --to 0.5 for half of the state, or --to 64x64")
        return parse_request(DEFAULT_SHARE if self.to is None else self.to)


@options
class TrimRunOptions(TrimOptions, ProgressOptions):
    """The options of `trim`, and where its result goes."""

    out: str | Path = output_option(help="Output directory.")
    watch: "Observer | None" = option(
        default=None, help="Notified of each stage; replaces `progress`.", flags=(), in_record=False
    )
