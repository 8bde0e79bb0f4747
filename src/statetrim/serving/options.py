"""The options of `inspect`: what to keep, and how the model is served."""

from typing import Any

from ..errors import StatetrimError
from ..maths.units import Amount, parse_amount
from ..options import Check, option, options

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
            raise StatetrimError(f"{name} is {least:g} to {most:g} {unit}, not {value:g}")

    return check


def _engine(name: str, value: str) -> None:
    if value not in KV_DTYPES:
        raise StatetrimError(f"{name} {value!r} has no calculation; choose {', '.join(KV_DTYPES)}")


def _amount(name: str, value: Amount) -> None:
    parse_amount(value)


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

    keep: Amount | None = option(
        default=None,
        help="Key channels to keep per head: a count (64) or a fraction (0.5).",
        check=_amount,
        kw_only=False,
    )
    keep_values: Amount | None = option(
        default=None,
        help="Value channels to keep per head: a count or a fraction.",
        check=_amount,
        kw_only=False,
    )
    square: Amount | None = option(
        default=None,
        help="Key and value channels to keep per head, the same number of each.",
        check=_amount,
    )
    keep_heads: Amount | None = option(
        default=None,
        help="Whole value heads to keep: a count (8) or a fraction. Loses more than removing "
        "channels; for models whose channels cannot be removed.",
        check=_amount,
    )

    def requested(self) -> dict[str, Any]:
        """What to keep, as `target_from_amounts` takes it; empty if nothing is to be cut."""
        names = ("keep", "keep_values", "square", "keep_heads")
        amounts = {name: getattr(self, name) for name in names}
        return {name: amount for name, amount in amounts.items() if amount is not None}
