"""The options of `trim` and `sweep`, as data."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from ..defaults import KEY_METHOD, RECALL, VALUE_METHOD
from ..errors import refuse_unknown
from ..maths.units import Amount, token_count

if TYPE_CHECKING:
    from ..runtime.placement import Placement
    from ..runtime.states.stored import StateStorage

ASKED = (
    "state", "keep", "keep_values", "square", "state_mib_per_sequence", "sequences", "memory_gib",
    "for_", "widths", "keep_heads",
)  # fmt: skip
"""The options that together say what to keep."""
GENERATED = ("recall", "random")
"""Parts of the calibration tokens that are made, not read."""
PLACES = ("device", "device_map", "max_memory")
"""Where it runs; the result is the same."""


@dataclass(frozen=True)
class TrimOptions:
    """Everything that decides the result of `trim`, with a default for each.

    What to keep is said once: as a share of the state's bytes (`state`), by channels (`keep`,
    `keep_values`, `square`), by the memory of one sequence (`state_mib_per_sequence`), or by that
    of several (`sequences` in `memory_gib`), or layer by layer (`widths`), or as whole heads
    (`keep_heads`).
    """

    state: float | None = None
    """The share of the state's bytes to keep (0.5): the shapes that fit are compared."""
    keep: Amount | None = None
    """Channels to keep per key head (64), or the fraction (0.5)."""
    keep_values: Amount | None = None
    """The same of value heads."""
    square: Amount | None = None
    """As many of keys and of values."""
    widths: str | None = None
    """Keys x values of every layer (0=64x64,others=32x32): an uneven cut, for `statetrim.load` and
    vLLM with our plugin only."""
    keep_heads: Amount | None = None
    """Whole value heads to keep in every layer (8), or the fraction (0.5). It costs more than
    channels wherever that was measured, except where value heads share key heads; for models
    whose config has no other way."""
    state_mib_per_sequence: float | None = None
    """The most that a sequence's state may take."""
    sequences: int | None = None
    """Sequences to hold at once in `memory_gib`."""
    memory_gib: float | None = None
    """Memory for their states, beside the weights."""
    for_: str | None = None
    """An engine (vllm, vllm-cpu, sglang, transformers, mlx, llamacpp): a state of no more than was
    asked for, or than half of the bytes, that it serves. `--for` on the command line; Python keeps
    `for`."""
    text: str | Path = "HuggingFaceFW/fineweb-edu"
    """To calibrate, recover and evaluate on: a file, a folder or a hub dataset."""
    tokens: int | str = 2**18
    """To calibrate on; 65536 or "64k"."""
    recall: float = RECALL
    """The part of those tokens that are recall sequences, made for it."""
    random: float = 0.0
    """The part of them that are drawn at random."""
    length: int = 512
    """Tokens of a sequence."""
    batch_size: int = 8
    """Sequences a forward pass."""
    method: str = KEY_METHOD
    """How key channels are chosen."""
    value_method: str = VALUE_METHOD
    """How value channels are chosen."""
    refit: bool | None = None
    """Fit output projections anew; None: where values are cut, as the norm's scale changes, or
    heads."""
    recover: int | str = 0
    """Tokens to recover on, after those of calibration; 0: the model stays as it was cut."""
    tasks: Sequence[str] = ("text", "mqar")
    """What is measured."""
    data: str | Path | None = None
    """Where the files of other tasks lie."""
    limit: int = 32
    """Samples of each task."""
    control: bool = True
    """Measure a random cut beside it."""
    benchmark: bool = True
    """Time both models."""
    seed: int = 0
    layerwise: bool | None = None
    """Stream weights from disk; None: where two models do not fit into memory."""
    device: str | None = None
    """Where models run: cpu, cuda or cuda:1; None: the first GPU, or the CPU without one."""
    device_map: str | None = None
    """"auto" spreads a model over all GPUs."""
    max_memory: str | None = None
    """Of each of them: 0=70GiB,1=40GiB."""
    dtype: str | None = None
    """float32, float16 or bfloat16; None: as stored."""
    state_dtype: str | None = None
    """Measure the cut with states stored in bfloat16, float16, float8_e4m3fn or int8, as an engine
    would; the original keeps float32."""

    def __post_init__(self) -> None:
        for tokens in (self.tokens, self.recover):
            token_count(tokens)  # refuses what is none
        if any(getattr(self, name) is not None for name in (*PLACES, "dtype")):
            self.placement  # noqa: B018  (the same)
        if self.state_dtype is not None:
            self.storage  # noqa: B018  (the same)

    @property
    def placement(self) -> "Placement":
        """Where models run, and in which precision."""
        from ..runtime.placement import Placement  # torch comes when a model is to run

        if self.layerwise:
            return Placement(self.device, dtype=self.dtype, layerwise=True)
        return Placement(self.device, self.device_map, self.max_memory, self.dtype)

    @property
    def storage(self) -> "StateStorage":
        """How states are stored where quality is measured."""
        from ..runtime.states.stored import StateStorage

        return StateStorage(self.state_dtype or "float32")

    @property
    def asks(self) -> bool:
        """Whether anything says what to keep."""
        return any(getattr(self, name) is not None for name in ASKED)


class TrimFields(TypedDict, total=False):
    """The fields of `TrimOptions`, for those who give them one by one."""

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


def changed(owner: str, options: TrimOptions | None, changes: TrimFields) -> TrimOptions:
    """The options with those that were given by name, which must exist."""
    refuse_unknown(owner, changes, [field.name for field in fields(TrimOptions)])
    return replace(options or TrimOptions(), **changes)
