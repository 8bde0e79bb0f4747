"""The options of `inspect`: what to keep, and how the model is served."""

from ..cut.request import REQUEST_HELP, To, check_request
from ..errors import StatetrimError
from ..maths.formatting import choices_text, shorten
from ..options import Check, derive, option, options
from .engines import DEFAULT_ENGINE, counted_engines
from .engines.engine import Engine

DEFAULT_CONTEXT = 4096
DEFAULT_MEMORY_GIB = 16.0
_KV_DTYPES = dict.fromkeys(dtype for each in counted_engines().values() for dtype in each.kv_dtypes)


def _between(least: float, most: float, unit: str) -> Check:
    def check(name: str, value: float) -> None:
        if not least <= value <= most:
            raise StatetrimError(f"{name} is {least:g} to {most:g} {unit}, not {shorten(value)}")

    return check


@options
class CacheOptions:
    """The cache of an engine, in which sequences are counted; the defaults are the engine's own."""

    memory_gib: float | None = option(
        default=None,
        help="Cache memory of a device in GiB; shows how many sequences fit.",
        check=_between(2**-20, 2**20, "GiB"),
    )
    context: int | None = option(
        default=None,
        help="Tokens per sequence, with --memory-gib; 4096 by default.",
        check=_between(1, 2**30, "tokens"),
    )
    kv_dtype: str = option(
        default="auto",
        help=f"Keys and values: {choices_text(_KV_DTYPES)} by engine; auto is 16 bits.",
    )
    speculative: int = option(
        default=0,
        help="Draft tokens of speculative decoding.",
        check=_between(0, 64, "draft tokens"),
    )
    prefix_caching: bool = option(
        default=True, flags=("--no-prefix-caching",), help="Serve without the prefix cache."
    )
    devices: int = option(
        default=1, help="Devices of tensor parallelism.", check=_between(1, 1024, "devices")
    )

    def in_engine(self, requested: Engine | None) -> "ServingOptions":
        """How sequences are counted: in this cache of the engine, if its arithmetic is known, else
        of the default engine, and of 16 GiB if the options do not say it."""
        return derive(
            ServingOptions,
            self,
            engine=requested.key if requested and requested.fit else DEFAULT_ENGINE,
            memory_gib=self.memory_gib or DEFAULT_MEMORY_GIB,
        )


@options
class ServingOptions(CacheOptions):
    """How a model is served."""

    engine: str = option(
        default=DEFAULT_ENGINE,
        help=f"Whose arithmetic, with --memory-gib: {choices_text(counted_engines())}.",
    )
    coded_share: float | None = option(
        default=None,
        help="Share of float32 that a coded copy takes, by `snapshot`; counts such copies.",
        check=_between(1e-6, 1, "of the float32 bytes"),
    )

    @property
    def counted_by(self) -> Engine:
        """The engine whose arithmetic counts."""
        return counted_engines()[self.engine]

    @property
    def counted(self) -> str:
        """What is counted, for people."""
        memory, context = self.memory_gib or DEFAULT_MEMORY_GIB, self.context or DEFAULT_CONTEXT
        engine = self.counted_by.name
        return f"sequences of {context:,} tokens in {memory:g} GiB of {engine}'s cache"

    def check(self) -> None:
        if self.engine not in counted_engines():
            choices = ", ".join(counted_engines())
            raise StatetrimError(f"--engine {self.engine!r} has no calculation; choose {choices}")
        allowed = self.counted_by.kv_dtypes
        if self.kv_dtype not in allowed:
            raise StatetrimError(
                f"{self.engine} has no KV cache in {self.kv_dtype!r}; choose {', '.join(allowed)}"
            )
        if self.context is not None and self.memory_gib is None:
            raise StatetrimError("--context goes with --memory-gib, the memory of the cache in GiB")


@options
class InspectOptions(ServingOptions):
    """What to keep, and how the result is served."""

    to: To | None = option(default=None, help=REQUEST_HELP, check=check_request, kw_only=False)
