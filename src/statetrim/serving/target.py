"""From the options that say what to keep to the geometry after pruning."""

from dataclasses import dataclass

from ..errors import StatetrimError
from ..families.contract import resized_config
from ..geometry import Geometry, resolve_heads, resolve_keep, resolve_square
from ..maths.units import MIB, Amount
from ..storage.checkpoint import Checkpoint, check_heads_removable, check_values_prunable
from .budget import bytes_per_sequence, widest_that_fits
from .engine_names import engine_name
from .engines import Shape, known_engines
from .shapes import (
    CandidateShape,
    candidate_shapes,
    check_engine,
    engine_serves,
    nearest_served_shape,
)
from .state_size import StateSize, stored_dtype
from .widths import Widths, parse_widths, widths_text


@dataclass(frozen=True)
class Target:
    """The geometry after pruning, and the amounts as the caller gave them; None: keep all."""

    after: Geometry
    keep: Amount | None
    keep_values: Amount | None
    keep_heads: Amount | None = None


def target_from_amounts(
    model: Checkpoint,
    keep: Amount | None = None,
    keep_values: Amount | None = None,
    square: Amount | None = None,
    widths: Widths | None = None,
    keep_heads: Amount | None = None,
) -> Target:
    """The target of `keep` key and `keep_values` value channels per head, of `square` of both, of
    `widths` by layer, or of `keep_heads` whole heads.

    Raises StatetrimError if the amounts contradict each other or would cut nothing, or if the model
    or its config does not allow such a state.
    """
    if keep_heads is not None:
        if _count_set(keep, keep_values, square, widths):
            raise StatetrimError("--keep-heads removes whole heads; leave out the other ways")
        return _head_target(model, keep_heads)
    if widths is not None:
        if _count_set(keep, keep_values, square):
            raise StatetrimError("--widths says what every layer keeps; leave out the others")
        return _by_layer_target(model, widths)
    if square is not None:
        if keep is not None or keep_values is not None:
            raise StatetrimError("--square says what to keep of both axes; leave out the other two")
        keys, values = resolve_square(square, model.geometry)
        keep = None if keys is None else str(keys)
        keep_values = None if values is None else str(values)
    if keep is None and keep_values is None:
        raise StatetrimError("say how many channels to keep: of keys, of values, or of both")
    before = model.geometry
    keep_values = _none_if_all(keep_values, before.head_v_dim, other_axis=keep)
    keep = _none_if_all(keep, before.head_k_dim, other_axis=keep_values)
    if keep_values is not None:
        check_values_prunable(model)
    after = before.resized(
        None if keep is None else resolve_keep(keep, before.head_k_dim),
        None if keep_values is None else resolve_keep(keep_values, before.head_v_dim),
    )
    resized_config(model.family, model.config, after)  # raises if the config cannot express it
    return Target(after, keep, keep_values)


def _count_set(*values: object) -> int:
    return sum(value is not None for value in values)


def _none_if_all(
    amount: Amount | None, channels: int, *, other_axis: Amount | None
) -> Amount | None:
    """`amount`, but None if it is the count of all channels of its axis and the other axis is
    pruned, as in 64x128."""
    return None if other_axis is not None and str(amount).strip() == str(channels) else amount


def _head_target(model: Checkpoint, keep_heads: Amount) -> Target:
    """The target with `keep_heads` value heads in every layer; raises StatetrimError if heads
    cannot be removed, or not to that number."""
    check_heads_removable(model)
    after = resolve_heads(keep_heads, model.geometry)
    resized_config(model.family, model.config, after)
    return Target(after, None, None, keep_heads)


def _by_layer_target(model: Checkpoint, widths: Widths) -> Target:
    """The target with these widths; raises StatetrimError if the model or its config does not allow
    them.

    `keep` and `keep_values` are the widths of all layers as text, None for an axis that no layer
    cuts.
    """
    before, after = model.geometry, parse_widths(widths, model.geometry)
    removes_keys = removes_values = False
    for layer in before.layers:
        removes_keys |= before.shapes[layer][0] != after.shapes[layer][0]
        removes_values |= before.shapes[layer][1] != after.shapes[layer][1]
    if removes_values:
        check_values_prunable(model)
    resized_config(model.family, model.config, after)
    requested = widths_text(after)
    return Target(after, requested if removes_keys else None, requested if removes_values else None)


def targets_within_share(
    model: Checkpoint, share: float, for_: str | None = None
) -> dict[CandidateShape, Target]:
    """The targets of at most `share` of the bytes that the model's config can express and the
    engine `for_` serves; without it, those that every engine serves come first.

    Raises StatetrimError if there is none.
    """
    model_type = str(model.config.get("model_type"))
    engine = None if for_ is None else engine_name(for_)
    targets: dict[CandidateShape, Target] = {}
    last_error: StatetrimError | None = None
    for candidate in candidate_shapes(model_type, model.geometry, share, engine):
        try:
            targets[candidate] = target_for_shape(model, candidate.shape)
        except StatetrimError as error:  # values cannot be pruned, or not to that width
            last_error = error
    if not targets:
        raise last_error or StatetrimError(f"no shape of at most {share:.0%} of the state is left")
    return targets


def target_from_options(
    model: Checkpoint,
    *,
    keep: Amount | None = None,
    keep_values: Amount | None = None,
    square: Amount | None = None,
    state_mib_per_sequence: float | None = None,
    sequences: int | None = None,
    memory_gib: float | None = None,
    for_: str | None = None,
    widths: str | None = None,
    keep_heads: Amount | None = None,
) -> Target:
    """The target of the options of `trim`, exactly one of which must say what to keep; `keep` and
    `keep_values` count as one, and so do `sequences` and `memory_gib`.

    With the engine `for_`, it is the nearest shape with no more state that the engine serves. If
    both axes or `square` were given, or `keep_heads`, only what was requested is allowed. Raises
    StatetrimError if there is none, and for `widths` with an engine.
    """
    if (sequences is None) != (memory_gib is None):
        raise StatetrimError("--sequences and --memory-gib go together; give both or neither")
    by_axis = None if keep is None and keep_values is None else (keep, keep_values)
    if _count_set(by_axis, square, state_mib_per_sequence, sequences, widths, keep_heads) != 1:
        raise StatetrimError(
            "say once what to keep: --state 0.5, --keep 64 (and --keep-values), --square 64, "
            "--state-mib-per-sequence 40, --sequences 64 --memory-gib 24, --widths by layer, or "
            "--keep-heads 8"
        )
    if widths is not None and for_ is not None:
        raise StatetrimError(
            f"no engine serves layers of different widths by itself, {engine_name(for_)} neither; "
            f"leave out --for, or --widths"
        )
    if state_mib_per_sequence is not None:
        requested = _target_within_bytes(model, state_mib_per_sequence * MIB)
    elif sequences is not None and memory_gib is not None:
        requested = _target_within_bytes(model, bytes_per_sequence(memory_gib, sequences))
    else:
        requested = target_from_amounts(model, keep, keep_values, square, widths, keep_heads)
    if for_ is None:
        return requested
    if keep_heads is not None:
        return _served_head_target(model, requested, engine_name(for_))
    exact = square is not None or (keep is not None and keep_values is not None)
    return _served_target(model, requested.after, engine_name(for_), exact=exact)


def _target_within_bytes(model: Checkpoint, max_bytes: float) -> Target:
    """The target with the most key channels with which the float32 state and the convolution state
    of a sequence take at most `max_bytes`; values keep their width."""
    dtype = stored_dtype(model)
    widest = widest_that_fits(
        model.geometry,
        max_bytes,
        lambda geometry: StateSize.from_geometry(geometry, dtype).total,
    )
    return target_from_amounts(model, widest.head_k_dim)


def _served_target(model: Checkpoint, requested: Geometry, engine: str, *, exact: bool) -> Target:
    """The target of the nearest shape to `requested` that `engine` serves, with no more state.
    Raises StatetrimError if there is none, or with `exact` if it is not `requested` itself."""
    model_type = str(model.config.get("model_type"))
    check_engine(engine, model_type)
    keys, values = requested.head_k_dim, requested.head_v_dim
    if exact and engine_serves(engine, model_type, Shape(keys, values)):
        return target_for_shape(model, Shape(keys, values))
    shape = nearest_served_shape(model_type, model.geometry, keys, values, engine=engine)
    if exact:
        raise StatetrimError(
            f"{engine} does not serve a state of {keys}x{values} for {model_type}; the nearest it "
            f"serves is {shape}"
        )
    return target_for_shape(model, shape)


def _served_head_target(model: Checkpoint, requested: Target, engine: str) -> Target:
    """`requested`, whose heads keep their shape; raises StatetrimError if the engine is not known
    to serve that shape."""
    model_type = str(model.config.get("model_type"))
    shape = Shape.from_geometry(requested.after)
    if engine not in known_engines(model_type) or not engine_serves(engine, model_type, shape):
        raise StatetrimError(
            f"{engine} is not known to serve heads of {requested.after.shape} for {model_type}, "
            "however many"
        )
    return requested


def target_for_shape(model: Checkpoint, shape: Shape) -> Target:
    """The target with exactly this shape; raises StatetrimError if the model does not allow it."""
    before = model.geometry
    return target_from_amounts(
        model,
        None if shape.head_k_dim == before.head_k_dim else shape.head_k_dim,
        None if shape.head_v_dim == before.head_v_dim else shape.head_v_dim,
    )
