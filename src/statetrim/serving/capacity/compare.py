"""How many sequences of a model fit in the cache of an engine, before and after a cut."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...artifacts.state_sizes import DTYPE_BYTES, served_dtype, state_text
from ...cut.geometry import MAX_CHANNELS, MAX_LAYERS, Geometry
from ...errors import StatetrimError
from ...families.contract import int_field
from ...families.mamba2 import Mamba2
from ...maths.formatting import fit_text, list_text
from ...maths.units import GIB
from ...storage.checkpoint import Checkpoint
from ..engines.engine import Engine
from ..matrix import ServedBy
from ..options import DEFAULT_CONTEXT, DEFAULT_MEMORY_GIB, ServingOptions
from .arithmetic import CacheModel, Fit, Settings, StateLayers
from .parts import Paging, in_parts


@dataclass(frozen=True)
class Capacity:
    """What fits with one shape and one dtype of the state."""

    shape: str
    is_cut: bool
    state_dtype: str
    is_default: bool  # whether the engine takes this dtype without a flag
    state_bytes: int  # recurrent state of a sequence in this dtype, without padding
    fit: Fit


@dataclass(frozen=True)
class Gain:
    """What a flag gives for this model: alone, and with the cut."""

    flag: str
    fit: Fit
    cut_fit: Fit | None
    cost: str
    source: str


def settings_for(
    model: Checkpoint, serving: ServingOptions, state_dtype: str | None = None
) -> Settings:
    """The settings of the arithmetic; the state has the engine's dtype unless another is given."""
    dtype = state_dtype or default_state_dtype(serving.counted_by, model)
    return Settings(
        memory=int((serving.memory_gib or DEFAULT_MEMORY_GIB) * GIB),
        context=serving.context or DEFAULT_CONTEXT,
        state_bytes=DTYPE_BYTES[dtype],
        conv_bytes=DTYPE_BYTES[served_dtype(model)],
        kv_bytes=serving.counted_by.kv_dtypes[serving.kv_dtype],
        speculative=serving.speculative,
        prefix_caching=serving.prefix_caching,
        devices=serving.devices,
        coded_share=serving.coded_share or 0.0,
    )


def capacities(
    model: Checkpoint, after: Geometry | None, serving: ServingOptions
) -> list[Capacity]:
    """Capacities of the original and, if there is one, of the cut, each with the state in float32,
    in bfloat16 if the engine has that option, and in the engine's default dtype. What the engine is
    known to refuse is left out."""
    engine = serving.counted_by
    default = default_state_dtype(engine, model)
    offered = ["bfloat16"] if engine.state_dtype_flag else []
    dtypes = dict.fromkeys(["float32", *offered, default])
    before, rows = model.geometry, []
    for geometry, is_cut in ((before, False), *([] if after is None else [(after, True)])):
        if _is_refused(model, geometry, engine):
            continue
        other = before if is_cut else after or before
        shape = geometry.describe_against(other).replace(" x ", "x")
        for dtype in dtypes:
            fit = capacity(model, geometry, settings_for(model, serving, dtype), engine)
            size = geometry.state_numel * DTYPE_BYTES[dtype]
            rows.append(Capacity(shape, is_cut, dtype, dtype == default, size, fit))
    return rows


def _is_refused(model: Checkpoint, geometry: Geometry, engine: Engine) -> bool:
    """Whether the engine is known to refuse the state on all hardware."""
    return engine.name in ServedBy.of(model.model_type, geometry).refused


def capacity(model: Checkpoint, geometry: Geometry, settings: Settings, engine: Engine) -> Fit:
    """What fits with the state of `geometry`. In pages, widths by layer are stored as the plugin
    does: in parts, with the specs that give more. Raises StatetrimError if the devices cannot share
    the heads, and for a model with an indexer, for which vLLM packs pages of several sizes."""
    assert engine.fit is not None
    if model.text_config.get("indexer_head_dim"):
        raise StatetrimError(
            f"{model.config.get('model_type')} has an indexer, whose caches are not counted yet; "
            "leave out --memory-gib, or give a share of the state"
        )
    caches = cache_model(model, geometry)
    _check_devices(caches, geometry, settings.devices)
    if not (geometry.widths and engine.has_pages and caches.softmax_layers):
        return engine.fit(caches, settings)
    parts = replace(caches, states=in_parts(caches, geometry, settings))
    both = (parts, replace(parts, specs_by_shape=True))
    return max((engine.fit(layout, settings) for layout in both), key=lambda fit: fit.sequences)


def flag_gains(model: Checkpoint, after: Geometry | None, serving: ServingOptions) -> list[Gain]:
    """What each flag that applies gives, for the original and for a cut that the engine serves."""
    engine = serving.counted_by
    if after is not None and _is_refused(model, after, engine):
        after = None
    settings, is_mamba2 = settings_for(model, serving), isinstance(model.family, Mamba2)
    by_flag = []
    for flag in engine.flags:
        if flag.applies(settings, is_mamba2):
            changed = replace(settings, **flag.change)  # type: ignore[arg-type]
            fit = capacity(model, model.geometry, changed, engine)
            cut = None if after is None else capacity(model, after, changed, engine)
            source = f"{engine.name} {engine.version}: {flag.source}"
            by_flag.append(Gain(flag.flag, fit, cut, flag.cost, source))
    return by_flag


def _check_devices(caches: CacheModel, geometry: Geometry, devices: int) -> None:
    """Raise StatetrimError unless every device gets as many value heads, key heads and heads of
    softmax layers. Those of softmax layers may also be copied to several devices each, and so may
    the only group of Mamba-2 (vLLM: layers/mamba/mamba_mixer2.py)."""
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


def engine_paging(
    model: Checkpoint, serving: ServingOptions, state_dtype: str | None = None
) -> Paging:
    """How the engine's cache is divided into pages."""
    settings = settings_for(model, serving, state_dtype)
    return Paging.of(cache_model(model, model.geometry), model.geometry, settings)


def known_capacities(
    model: Checkpoint | None, after: Geometry | None, serving: ServingOptions
) -> list[Capacity]:
    """`capacities`; empty without a model, and if they are not known."""
    try:
        return [] if model is None else capacities(model, after, serving)
    except StatetrimError:
        return []


def default_capacity(rows: Sequence[Capacity], *, cut: bool) -> Capacity | None:
    """That of the cut, or of the original, with the engine's default dtype; None if unknown."""
    return next((row for row in rows if row.is_default and row.is_cut == cut), None)


def gain_text(fit: Fit, baseline: Fit) -> str:
    """How many times as many sequences fit."""
    return f"{fit.sequences / baseline.sequences:.2f}x" if baseline.sequences else "from none"


def capacity_rows(rows: Sequence[Capacity], *, with_cut: bool = True) -> list[tuple[str, ...]]:
    """A row per dtype of the state, the engine's default first: its name, sequences of the original
    and, `with_cut`, of the cut. Gains are over the original with the default dtype."""
    baseline = default_capacity(rows, cut=False)
    texts = []
    defaults_first = sorted(rows, key=lambda row: not row.is_default)
    for dtype in dict.fromkeys(row.state_dtype for row in defaults_first):
        name, cells = f"sequences, {dtype} state", ["refused"] * (2 if with_cut else 1)
        if dtype == defaults_first[0].state_dtype:
            name += " (default)"
        for row in rows:
            if row.state_dtype == dtype:
                cells[row.is_cut] = fit_text(row.fit.sequences)
                if baseline is not None and row is not baseline:
                    cells[row.is_cut] += f" ({gain_text(row.fit, baseline.fit)})"
        texts.append((name, *cells))
    return texts


def prefix_rows(rows: Sequence[Capacity], *, with_cut: bool = True) -> list[tuple[str, ...]]:
    """The row of the shortest shared prefix that is cached: its name, tokens with the original and,
    `with_cut`, with the cut, in the default dtype of the state. Empty if no prefix is cached."""
    cells = []
    for cut in (False, True) if with_cut else (False,):
        row = default_capacity(rows, cut=cut)
        cells.append(f"{row.fit.shortest_prefix:,} tokens" if row else "refused")
    is_cached = any(row.fit.shortest_prefix for row in rows)
    return [("cached prefix from", *cells)] if is_cached else []


def prefix_warnings(rows: Sequence[Capacity], serving: ServingOptions) -> list[str]:
    """Names the states with which the prefix cache never hits, if there are some."""
    context = serving.context or DEFAULT_CONTEXT
    inert = [row for row in rows if row.fit.shortest_prefix >= context]
    if not inert:
        return []
    states = [f"{row.fit.shortest_prefix:,} with {row.shape} {row.state_dtype}" for row in inert]
    return [
        f"the prefix cache of {serving.counted_by.name} never hits in sequences of {context:,} "
        f"tokens; the shortest prefix that is cached has {list_text(states)}"
    ]


def capacity_text(
    rows: Sequence[Capacity], serving: ServingOptions, *, with_cut: bool = True
) -> str:
    """How many sequences fit in the engine without and, `with_cut`, with the cut, for people: first
    with its default dtype of the state, then with the other one."""
    parts = []
    for name, *cells in capacity_rows(rows, with_cut=with_cut):
        dtype = name.removeprefix("sequences, ").replace(" state (default)", ", its default")
        parts.append(f"{' → '.join(cells)} in {dtype.removesuffix(' state')}")
    return f"{serving.counted}: {'; '.join(parts) or 'not known'}"


def memory_lines(original: Checkpoint, cut: Geometry, serving: ServingOptions) -> list[str]:
    """What a cut saves: sequences that fit, if they are known, and bytes of state."""
    rows = known_capacities(original, cut, serving)
    has_option = bool(serving.counted_by.state_dtype_flag)
    states = state_text(original.geometry, cut, with_bfloat16=has_option)
    return [capacity_text(rows, serving), states] if rows else [states]


def cache_model(model: Checkpoint, geometry: Geometry) -> CacheModel:
    """The caches of `model` with the state of `geometry`."""
    config = model.text_config
    kv_cache = model.family.kv_cache_size(model.config, model.geometry)
    if kv_cache is None:
        raise StatetrimError(
            f"the KV cache of {model.config.get('model_type')} is not known, so the number of "
            "sequences that fit cannot be computed; leave out --memory-gib, or give a share"
        )
    kv_heads = 1 if kv_cache.numel % kv_cache.heads else kv_cache.heads  # with an indexer's keys
    kda = config.get("linear_attn_config")
    ple_layer_ids = config.get("ple_layer_ids")
    ple_layers = ple_inputs = 0
    if isinstance(ple_layer_ids, list) and len(ple_layer_ids) <= MAX_LAYERS:
        ple_layers = len({str(layer) for layer in ple_layer_ids})
    if ple_layers:  # inputs that Qwen4-Exp's dilated PLE convolution keeps
        taps = int_field(config, "ple_conv_kernel_size", default=4, maximum=1024)
        ple_inputs = (taps - 1) * int_field(config, "ngram_size", default=3, maximum=MAX_CHANNELS)
    streams = int_field(config, "hc_count", default=1, maximum=1024)
    return CacheModel(
        states=state_layers(geometry),
        conv_width=max(geometry.conv_width, 1),
        softmax_layers=kv_cache.layers,
        kv_heads=kv_heads,
        kv_numel=kv_cache.numel // kv_heads,
        latent=kv_cache.latent,
        shared_groups=isinstance(model.family, Mamba2),
        bounded_gate=isinstance(kda, dict) and kda.get("gate_lower_bound") is not None,
        draft_layers=_draft_layers(config),
        ple_layers=ple_layers,
        ple_inputs=ple_inputs,
        ple_width=streams * int_field(config, "hidden_size", default=2048) if ple_layers else 0,
        chunk=int_field(config, "mamba_chunk_size", default=64),
    )


def state_layers(geometry: Geometry) -> tuple[StateLayers, ...]:
    """The linear layers, one entry per shape, the most channels first."""
    groups = []
    for (keys, values), layers in sorted(Counter(geometry.shapes.values()).items(), reverse=True):
        groups.append(
            StateLayers(
                layers=layers,
                heads=geometry.num_v_heads,
                keys=keys,
                values=values,
                conv_key_heads=geometry.conv_key_heads,
                conv_value_heads=geometry.conv_value_heads,
            )
        )
    return tuple(groups)


def default_state_dtype(engine: Engine, model: Checkpoint) -> str:
    """The dtype of the state without a flag."""
    return engine.default_state_dtype(model.text_config, served_dtype(model))


def _draft_layers(config: dict[str, Any]) -> int:
    """Softmax layers of the MTP head: vLLM 0.32.0, models/qwen3_5_mtp.py and nemotron_h_mtp.py."""
    if not config.get("num_nextn_predict_layers") and not config.get("mtp_num_hidden_layers"):
        return 0
    steps = int_field(config, "num_nextn_predict_layers", default=1, maximum=MAX_LAYERS)
    kinds = config.get("mtp_hybrid_override_pattern") or config.get("mtp_layers_block_type")
    if isinstance(kinds, str | list) and len(kinds) <= MAX_LAYERS:
        return steps * sum(kind in ("*", "attention") for kind in kinds)
    return int_field(config, "mtp_num_hidden_layers", default=steps, maximum=MAX_LAYERS)
