"""What statetrim knows of an engine, in one object."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..capacity.arithmetic import CacheModel, Fit, Settings

PLUGIN_TYPES = ("qwen3_next", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text")
"""Model types of which the plugins of statetrim have a class."""
BFLOAT16_COST = "small in our runs and grows with length: results/precision.md"
STATE_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Flag:
    """A flag of an engine as a change of the settings, and its cost as far as it is known."""

    flag: str
    change: Mapping[str, float]  # fields of `Settings`
    cost: str
    source: str  # a file of the engine
    min_drafts: int = 0  # draft tokens without which it does nothing
    mamba2: bool | None = None  # True: for Mamba-2 alone, False: for other models alone

    def applies(self, settings: Settings, is_mamba2: bool) -> bool:
        """Whether the flag changes anything in these settings."""
        if settings.speculative < self.min_drafts or self.mamba2 not in (None, is_mamba2):
            return False
        return all(getattr(settings, name) != value for name, value in self.change.items())


@dataclass(frozen=True, eq=False)
class Engine:
    """An engine. Which shapes it serves are rows of the matrix, under its `name`."""

    name: str  # as the matrix and people have it
    command: str  # that serves {model}; {no_mtp}: where it needs --no-mtp without such a head
    key: str = ""  # as options take it; empty: only the matrix has it
    packages: tuple[str, ...] = ()  # on the registry
    version: str = ""  # whose code was read for what follows
    hint: str = ""  # what its command may need, depending on the machine

    # Memory; without `fit`, sequences are counted in the default engine
    fit: Callable[[CacheModel, Settings], Fit] | None = None
    kv_dtypes: Mapping[str, float] = field(default_factory=dict)  # -> bytes of a number
    state_dtype_flag: str = ""  # that takes bfloat16; empty: there is none
    default_state_dtype: Callable[[Mapping[str, Any], str], str] = lambda config, served: "float32"
    """Config of the text model, dtype in which the model is served -> dtype of its state."""
    requests_flag: str = ""  # that takes `Fit.requests` at most
    flags: tuple[Flag, ...] = ()  # those that cost least first

    # Widths by layer, with a plugin of statetrim
    plugin_types: tuple[str, ...] = ()  # model types that it serves
    has_pages: bool = False  # of one size, in which the plugin stores wide layers in parts

    # `verify`
    driver: str = ""  # module of verification/drivers
    dtype: str = ""  # of weights; empty: as stored
    error_pattern: str = ""  # group 1 is its error in the log, if no exception holds it

    def serve_command(self, model: str, flag: str = "", *, without_mtp: bool = False) -> str:
        """The command line that serves the path `model`, with a flag; `without_mtp`: its weights
        lack the multi-token-prediction head that the config may announce."""
        no_mtp = " --no-mtp" if without_mtp else ""
        return f"{self.command.format(model=shlex.quote(model), no_mtp=no_mtp)} {flag}".strip()


def dtype_field(config: Mapping[str, Any], name: str, default: str) -> str:
    """The dtype that a field of an untrusted config names; `default` if it names none."""
    dtype = config.get(name)
    return dtype if isinstance(dtype, str) and dtype in STATE_DTYPES else default
