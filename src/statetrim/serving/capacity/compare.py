"""How many sequences of a model fit in the cache of an engine, before and after a cut."""

from dataclasses import dataclass, replace

from ...errors import StatetrimError
from ...families.contract import text_config
from ...geometry import Geometry
from ...maths.units import GIB
from ...storage.checkpoint import Checkpoint
from ..engine_names import BFLOAT16_ENGINES, ENGINE_NAMES
from ..options import KV_DTYPE_BYTES, ServingOptions
from ..state_size import DTYPE_BYTES, served_dtype
from .arithmetic import CacheModel, Fit, Settings, llamacpp, mlx, moved_bytes, sglang, vllm
from .cache_model import cache_model, default_state_dtype
from .parts import Paging, in_parts

ENGINES = {"vllm": vllm, "sglang": sglang, "llamacpp": llamacpp, "mlx": mlx}
"""Name of an engine -> how many sequences fit in it."""
DEFAULT_CONTEXT = 4096
DEFAULT_MEMORY_GIB = 16.0


@dataclass(frozen=True)
class Capacity:
    """What fits with one shape and one dtype of the state."""

    shape: str
    state_dtype: str
    is_default: bool  # whether the engine takes this dtype without a flag
    fit: Fit
    transfer_seconds: float  # of a sequence from a prefill to a decode server


def settings_for(
    model: Checkpoint, serving: ServingOptions, state_dtype: str | None = None
) -> Settings:
    """The settings of the arithmetic; the state has the engine's dtype unless another is given."""
    dtype = state_dtype or default_state_dtype(serving.engine, model)
    return Settings(
        memory=int((serving.memory_gib or DEFAULT_MEMORY_GIB) * GIB),
        context=serving.context or DEFAULT_CONTEXT,
        state_bytes=DTYPE_BYTES[dtype],
        conv_bytes=DTYPE_BYTES[served_dtype(model)],
        kv_bytes=KV_DTYPE_BYTES[serving.kv_dtype],
        speculative=serving.speculative,
        prefix_caching=serving.prefix_caching,
        devices=serving.devices,
        coded_share=serving.coded_share or 0.0,
    )


def capacities(
    model: Checkpoint, after: Geometry | None, serving: ServingOptions
) -> list[Capacity]:
    """Capacities of the original and, if there is one, of the cut, each with the state in float32,
    in bfloat16 if the engine has that option, and in the engine's default dtype."""
    default = default_state_dtype(serving.engine, model)
    has_option = ENGINE_NAMES[serving.engine] in BFLOAT16_ENGINES
    dtypes = dict.fromkeys(["float32", *(["bfloat16"] if has_option else []), default])
    before, rows = model.geometry, []
    for geometry in (before,) if after is None else (before, after):
        other = before if geometry is after else after or before
        shape = geometry.describe_against(other).replace(" x ", "x")
        for dtype in dtypes:
            fit = capacity(model, geometry, settings_for(model, serving, dtype), serving.engine)
            seconds = fit.transfer_bytes / (serving.bandwidth * 1e9)
            rows.append(Capacity(shape, dtype, dtype == default, fit, seconds))
    return rows


def capacity(model: Checkpoint, geometry: Geometry, settings: Settings, engine: str) -> Fit:
    """What fits with the state of `geometry`. Without softmax layers vLLM needs no blocks: it is
    the memory divided by the bytes of a state. Widths by layer are stored as vLLM's plugin does: in
    parts, with the specs that give more. Raises StatetrimError if the devices cannot share the
    heads, and for a model with an indexer, for which vLLM packs pages of several sizes."""
    if text_config(model.config).get("indexer_head_dim"):
        raise StatetrimError(
            f"{model.config.get('model_type')} has an indexer, whose caches are not counted yet; "
            "leave out --memory-gib"
        )
    caches = cache_model(model, geometry)
    _check_devices(caches, geometry, settings.devices)
    if engine == "vllm" and not caches.softmax_layers:
        return mlx(caches, replace(settings, speculative=0))
    if engine == "vllm" and geometry.widths:
        parts = replace(caches, states=in_parts(caches, geometry, settings))
        both = (parts, replace(parts, specs_by_shape=True))
        return max((vllm(caches, settings) for caches in both), key=lambda fit: fit.sequences)
    return ENGINES[engine](caches, settings)


def _check_devices(caches: CacheModel, geometry: Geometry, devices: int) -> None:
    """Raise StatetrimError unless every device gets as many value heads, key heads and heads of
    softmax layers. A head that all would share is copied: one of softmax layers in any engine, a
    key head only in Mamba-2, whose heads may all read the same one."""
    copies_key_head = caches.shared_groups and geometry.num_k_heads == 1
    copies_kv_heads = devices % caches.kv_heads == 0
    for kind, heads, is_copied in (
        ("value heads", geometry.num_v_heads, False),
        ("key heads", geometry.num_k_heads, copies_key_head),
        ("heads of softmax layers", caches.kv_heads, copies_kv_heads),
    ):
        if heads % devices and not is_copied:
            raise StatetrimError(
                f"{devices} devices cannot share {heads} {kind}; give --devices a divisor of "
                f"{heads}"
            )


def vllm_paging(model: Checkpoint) -> Paging:
    """How vLLM's cache is divided into pages with its default settings."""
    settings = settings_for(model, ServingOptions(engine="vllm"))
    return Paging.of(cache_model(model, model.geometry), model.geometry, settings)


def vllm_sequences(
    model: Checkpoint, geometry: Geometry, state_dtype: str | None = None
) -> float | None:
    """Sequences of `DEFAULT_CONTEXT` tokens in `DEFAULT_MEMORY_GIB` of vLLM's cache, with its
    default dtype of the state unless another is given; None if that is not known."""
    try:
        settings = settings_for(model, ServingOptions(engine="vllm"), state_dtype)
        return capacity(model, geometry, settings, "vllm").sequences
    except StatetrimError:
        return None


def sequences_text(model: Checkpoint, after: Geometry | None = None) -> str:
    """How many sequences fit in vLLM: with the state `after` a cut, without a cut, and without a
    cut in 16 bits."""
    counts = [] if after is None else [("after the cut", vllm_sequences(model, after))]
    counts += [
        ("as released", vllm_sequences(model, model.geometry)),
        ("without a cut with a 16-bit state", vllm_sequences(model, model.geometry, "bfloat16")),
    ]
    known = ", ".join(f"{count:.1f} {name}" for name, count in counts if count is not None)
    return (
        f"sequences of {DEFAULT_CONTEXT:,} tokens in {DEFAULT_MEMORY_GIB:g} GiB of vLLM's cache: "
        f"{known or 'not known'}"
    )


@dataclass(frozen=True)
class Alternative:
    """One way to store the state of a sequence."""

    name: str
    state_bytes: int
    sequences: int | None = None  # of DEFAULT_CONTEXT tokens in DEFAULT_MEMORY_GIB; None if unknown


def alternatives(
    before: Geometry, after: Geometry, model: Checkpoint | None = None
) -> list[Alternative]:
    """The original and the cut, each in float32 and bfloat16: four entries in this order.

    With `model`, the original, they have capacities by their bytes in transformers.
    """
    result: list[Alternative] = []
    for name, geometry in (("original", before), ("cut", after)):
        for dtype in ("float32", "bfloat16"):
            size = geometry.state_numel * DTYPE_BYTES[dtype]
            fitting = None if model is None else _sequences(model, geometry, dtype)
            result.append(Alternative(f"{name}, {dtype}", size, fitting))
    return result


def _sequences(model: Checkpoint, geometry: Geometry, state_dtype: str) -> int | None:
    try:
        caches = cache_model(model, geometry)
    except StatetrimError:
        return None
    settings = settings_for(model, ServingOptions(), state_dtype)
    return int(settings.memory // moved_bytes(caches, settings, geometry.conv_width))
