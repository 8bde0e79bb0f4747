"""The options of `trim` and `sweep` as a dataclass."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ..defaults import KEY_METHOD, RECALL_SHARE, VALUE_METHOD
from ..errors import check_option_names
from ..maths.units import Amount, parse_token_count

if TYPE_CHECKING:
    from ..runtime.placement import Placement
    from ..runtime.states.stored import StateStorage

TARGET_OPTIONS = (
    "state", "keep", "keep_values", "square", "state_mib_per_sequence", "sequences", "memory_gib",
    "for_", "widths", "keep_heads",
)  # fmt: skip
"""The options that say what to keep of the state."""
GENERATED_FRACTIONS = ("recall", "random")
"""Fractions of the calibration tokens that are generated instead of read."""
PLACEMENT_OPTIONS = ("device", "device_map", "max_memory")
"""The options that say where models run; they do not change the result."""


@dataclass(frozen=True)
class TrimOptions:
    """Every option of `trim` that affects the result, with its default.

    Say what to keep in one way: a fraction of the state's bytes (`state`), channels (`keep`,
    `keep_values`, `square`), the memory of one sequence (`state_mib_per_sequence`) or of several
    (`sequences` in `memory_gib`), layer by layer (`widths`), or whole heads (`keep_heads`).
    """

    state: float | None = None
    """Fraction of the state's bytes to keep (0.5); the shapes that fit are compared."""
    keep: Amount | None = None
    """Key channels to keep per head: a count (64) or a fraction (0.5)."""
    keep_values: Amount | None = None
    """Value channels to keep per head: a count or a fraction."""
    square: Amount | None = None
    """Key and value channels to keep per head, the same number of each."""
    widths: str | None = None
    """Widths by layer: key x value channels of each layer (0=64x64,others=32x32). Only
    `statetrim.load` and vLLM with statetrim's plugin load the result."""
    keep_heads: Amount | None = None
    """Whole value heads to keep in every layer: a count (8) or a fraction (0.5). It loses more than
    removing channels in every measurement, except where value heads share key heads; use it for
    models whose channels cannot be removed."""
    state_mib_per_sequence: float | None = None
    """The largest state allowed per sequence, in MiB."""
    sequences: int | None = None
    """Number of sequences whose states must fit in `memory_gib`."""
    memory_gib: float | None = None
    """Memory for the states of `sequences`, in GiB, without the weights."""
    for_: str | None = None
    """An engine (vllm, vllm-cpu, sglang, transformers, mlx, llamacpp). Only shapes that it serves
    are allowed, of at most the size asked for, or of half the bytes. The option is called `--for`
    on the command line, because `for` is a keyword in Python."""
    text: str | Path = "HuggingFaceFW/fineweb-edu"
    """Text to calibrate, recover and evaluate on: a file, a folder or a hub dataset."""
    tokens: int | str = 2**18
    """Number of tokens to calibrate on: 65536 or "64k"."""
    recall: float = RECALL_SHARE
    """Fraction of these tokens that are generated recall sequences."""
    random: float = 0.0
    """Fraction of these tokens that are drawn at random."""
    length: int = 512
    """Tokens per sequence."""
    batch_size: int = 8
    """Sequences per forward pass."""
    method: str = KEY_METHOD
    """Selection method for key channels."""
    value_method: str = VALUE_METHOD
    """Selection method for value channels."""
    refit: bool | None = None
    """Refit the output projections; None: only if values are cut, because the norm's scale changes,
    or heads."""
    recover: int | str = 0
    """Tokens to train on after the cut, taken after those of calibration; 0: no training."""
    tasks: Sequence[str] = ("text", "mqar")
    """Tasks to measure."""
    data: str | Path | None = None
    """Directory with the data files of other tasks."""
    limit: int = 32
    """Samples per task."""
    control: bool = True
    """Measure a random cut for comparison."""
    benchmark: bool = True
    """Compare the speed of both models."""
    seed: int = 0
    layerwise: bool | None = None
    """Stream weights from disk; None: only if two models do not fit in memory."""
    device: str | None = None
    """cpu, cuda or cuda:1; None: the first GPU, or the CPU without one."""
    device_map: str | None = None
    """"auto" spreads a model over all GPUs."""
    max_memory: str | None = None
    """Memory to use on each GPU with `device_map`: 0=70GiB,1=40GiB."""
    dtype: str | None = None
    """float32, float16 or bfloat16; None: as stored."""
    state_dtype: str | None = None
    """Measure the cut with states stored in bfloat16, float16, float8_e4m3fn or int8, as an engine
    would store them; the original keeps float32."""

    def __post_init__(self) -> None:
        """Raise StatetrimError for a token count, placement or dtype that is not valid."""
        parse_token_count(self.tokens)
        parse_token_count(self.recover)
        # These import torch, so they are called only for options that were given.
        if any(getattr(self, name) is not None for name in (*PLACEMENT_OPTIONS, "dtype")):
            _make_placement(self)
        if self.state_dtype is not None:
            _make_storage(self.state_dtype)

    @property
    def placement(self) -> "Placement":
        """Where models run, and in which precision."""
        return _make_placement(self)

    @property
    def storage(self) -> "StateStorage":
        """How states are stored where quality is measured."""
        return _make_storage(self.state_dtype or "float32")

    @property
    def has_target(self) -> bool:
        """Whether any option says what to keep."""
        return any(getattr(self, name) is not None for name in TARGET_OPTIONS)


class TrimFields(TypedDict, total=False):
    """The fields of `TrimOptions` as keyword arguments."""

    state: float | None
    keep: Amount | None
    keep_values: Amount | None
    square: Amount | None
    widths: str | None
    keep_heads: Amount | None
    state_mib_per_sequence: float | None
    sequences: int | None
    memory_gib: float | None
    for_: str | None
    text: str | Path
    tokens: int | str
    recall: float
    random: float
    length: int
    batch_size: int
    method: str
    value_method: str
    refit: bool | None
    recover: int | str
    tasks: Sequence[str]
    data: str | Path | None
    limit: int
    control: bool
    benchmark: bool
    seed: int
    layerwise: bool | None
    device: str | None
    device_map: str | None
    max_memory: str | None
    dtype: str | None
    state_dtype: str | None


def _make_placement(options: TrimOptions) -> "Placement":
    """Where models run, and in which precision; with `layerwise` the device map and its memory
    limit are ignored, because layers are loaded one at a time. Raises StatetrimError for options
    that are not valid."""
    from ..runtime.placement import Placement

    if options.layerwise:
        return Placement(options.device, dtype=options.dtype, layerwise=True)
    return Placement(options.device, options.device_map, options.max_memory, options.dtype)


def _make_storage(state_dtype: str) -> "StateStorage":
    """How states are stored; raises StatetrimError for an unknown dtype."""
    from ..runtime.states.stored import StateStorage

    return StateStorage(state_dtype)


def with_changes(owner: str, options: TrimOptions | None, changes: TrimFields) -> TrimOptions:
    """`options`, or the defaults, with `changes`; raises StatetrimError for unknown names."""
    check_option_names(owner, changes, [field.name for field in fields(TrimOptions)])
    return replace(options or TrimOptions(), **changes)
