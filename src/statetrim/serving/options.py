"""The options of `inspect`: what to keep, and how the model is served."""

from ..cut.request import REQUEST_HELP, To, check_request
from ..errors import StatetrimError
from ..maths.formatting import shorten
from ..options import Check, option, options
from .engine_names import ENGINE_NAMES

DEFAULT_CONTEXT = 4096
DEFAULT_MEMORY_GIB = 16.0

KV_DTYPE_BYTES = {"auto": 2.0, "fp8": 1.0, "q8_0": 34 / 32}
"""Dtype of keys and values -> bytes of a number; q8_0 has a scale for every 32 numbers."""
KV_DTYPES = {
    "vllm": ("auto", "fp8"),
    "sglang": ("auto", "fp8"),
    "llamacpp": ("auto", "q8_0"),
    "mlx": ("auto",),
}
"""Engine that the calculator knows -> dtypes that its KV cache has."""


def _between(least: float, most: float, unit: str) -> Check:
    def check(name: str, value: float) -> None:
        if not least <= value <= most:
            raise StatetrimError(f"{name} is {least:g} to {most:g} {unit}, not {shorten(value)}")

    return check


def _engine(name: str, value: str) -> None:
    if value not in KV_DTYPES:
        raise StatetrimError(f"{name} {value!r} has no calculation; choose {', '.join(KV_DTYPES)}")


@options
class ServingOptions:
    """How a model is served; the defaults are the engine's own."""

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
    engine: str = option(
        default="vllm",
        help="Whose arithmetic, with --memory-gib: vllm, sglang, llamacpp or mlx.",
        check=_engine,
    )
    kv_dtype: str = option(
        default="auto", help="Keys and values: auto (16 bits), fp8, or q8_0 of llama.cpp."
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
    bandwidth: float = option(
        default=25.0,
        help="GB/s from a prefill to a decode server.",
        check=_between(1e-6, 1e9, "GB/s"),
    )
    coded_share: float | None = option(
        default=None,
        help="Share of float32 that a coded copy takes, by `snapshot`; counts such copies.",
        check=_between(1e-6, 1, "of the float32 bytes"),
    )

    @property
    def counted(self) -> str:
        """What is counted, for people."""
        memory, context = self.memory_gib or DEFAULT_MEMORY_GIB, self.context or DEFAULT_CONTEXT
        engine = ENGINE_NAMES[self.engine]
        return f"sequences of {context:,} tokens in {memory:g} GiB of {engine}'s cache"

    def check(self) -> None:
        allowed = KV_DTYPES[self.engine]
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


def default_serving(requested: str | None) -> ServingOptions:
    """How the results of a cut count sequences: in the engine of `trim --for`, by its name in the
    matrix, if its arithmetic is known, else in vLLM."""
    engine = next((name for name in KV_DTYPES if ENGINE_NAMES[name] == requested), "vllm")
    return ServingOptions(memory_gib=DEFAULT_MEMORY_GIB, engine=engine)
