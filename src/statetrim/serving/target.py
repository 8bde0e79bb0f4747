"""From what a user asks for to the state that a cut leaves: resolved once, then passed on."""

from dataclasses import dataclass

from ..errors import StatetrimError
from ..families.contract import resized_config
from ..geometry import Geometry, resolve_heads, resolve_keep, resolve_square
from ..maths.units import MIB, Amount
from ..storage.checkpoint import Checkpoint, check_heads_removable, check_values_prunable
from .budget import bytes_per_sequence, widest_that_fits
from .engine_names import engine_name
from .engines import Shape, known_engines, nearest_served_shape
from .shapes import Candidate, candidate_shapes, check_engine, engine_serves
from .state_size import StateSize, stored_dtype
from .widths import Widths, parse_widths, widths_text


@dataclass(frozen=True)
class Target:
    """The state after a cut, and what was asked for along each axis, or of whole heads; None: it
    keeps all it has."""

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
    """Channels to keep of keys and of values, or of both to a `square`, or by layer, or whole
    heads; certain to be a state that the model's config can hold."""
    if keep_heads is not None:
        if not keep is keep_values is square is widths is None:
            raise StatetrimError("--keep-heads removes whole heads; leave out the other ways")
        return _head_target(model, keep_heads)
    if widths is not None:
        if not keep is keep_values is square is None:
            raise StatetrimError("--widths says what every layer keeps; leave out the others")
        return _by_layer_target(model, widths)
    if square is not None:
        if keep is not None or keep_values is not None:
            raise StatetrimError("--square says what to keep of both axes; leave out the other two")
        sides = resolve_square(square, model.geometry)
        keep, keep_values = (None if side is None else str(side) for side in sides)
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
    resized_config(model.family, model.config, after)
    return Target(after, keep, keep_values)


def _none_if_all(
    amount: Amount | None, channels: int, *, other_axis: Amount | None
) -> Amount | None:
    """None where an axis keeps all it has and the other is cut, as in 64x128."""
    return None if other_axis is not None and str(amount).strip() == str(channels) else amount


def _head_target(model: Checkpoint, keep_heads: Amount) -> Target:
    check_heads_removable(model)
    after = resolve_heads(keep_heads, model.geometry)
    resized_config(model.family, model.config, after)
    return Target(after, None, None, keep_heads)


def _by_layer_target(model: Checkpoint, widths: Widths) -> Target:
    before, after = model.geometry, parse_widths(widths, model.geometry)
    pairs = [(before.shapes[layer], after.shapes[layer]) for layer in before.layers]
    keys, values = (
        any(shape_before[axis] != shape_after[axis] for shape_before, shape_after in pairs)
        for axis in (0, 1)
    )
    if values:
        check_values_prunable(model)
    resized_config(model.family, model.config, after)
    requested = widths_text(after)
    return Target(after, requested if keys else None, requested if values else None)


def targets_within_share(
    model: Checkpoint, share: float, for_: str | None = None
) -> dict[Candidate, Target]:
    """The states of at most `share` of the bytes that the model's config can hold and that an
    engine serves; None: those that every engine serves come first."""
    model_type = str(model.config.get("model_type"))
    engine = None if for_ is None else engine_name(for_)
    targets: dict[Candidate, Target] = {}
    last_error: StatetrimError | None = None
    for candidate in candidate_shapes(model_type, model.geometry, share, engine):
        try:
            targets[candidate] = target_for_shape(model, candidate.shape)
        except StatetrimError as error:  # values that cannot be cut, widths a config cannot say
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
    """The same, or from what a sequence's state may take; with `for_`, a state of no more than
    that which this engine serves. Where both axes were given, that state or none."""
    if (sequences is None) != (memory_gib is None):
        raise StatetrimError("--sequences and --memory-gib go together; give both or neither")
    by_axis = None if keep is None and keep_values is None else (keep, keep_values)
    ways = (by_axis, square, state_mib_per_sequence, sequences, widths, keep_heads)
    ways_used = sum(way is not None for way in ways)
    if ways_used != 1:
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
    """The most keys with which a sequence takes no more than that."""
    dtype = stored_dtype(model)
    widest = widest_that_fits(
        model.geometry,
        max_bytes,
        lambda geometry: StateSize.from_geometry(geometry, dtype).total,
        square=False,
    )
    return target_from_amounts(model, widest.head_k_dim)


def _served_target(model: Checkpoint, requested: Geometry, engine: str, *, exact: bool) -> Target:
    """What `engine` serves best, of no more state than was asked for; just that if `exact`."""
    model_type = str(model.config.get("model_type"))
    check_engine(engine, model_type)
    if exact and engine_serves(engine, model_type, Shape.from_geometry(requested)):
        return target_for_shape(model, Shape.from_geometry(requested))
    shape = nearest_served_shape(
        model_type, model.geometry, requested.head_k_dim, requested.head_v_dim, engine=engine
    )
    if exact:
        raise StatetrimError(
            f"{engine} does not serve a state of {Shape.from_geometry(requested)} for {model_type}; the nearest it "
            f"serves is {shape}"
        )
    return target_for_shape(model, shape)


def _served_head_target(model: Checkpoint, requested: Target, engine: str) -> Target:
    """Fewer heads of the same shape, which the engine must serve as it is."""
    model_type = str(model.config.get("model_type"))
    if engine not in known_engines(model_type) or not engine_serves(
        engine, model_type, Shape.from_geometry(requested.after)
    ):
        raise StatetrimError(
            f"{engine} is not known to serve heads of {requested.after.shape} for {model_type}, however many"
        )
    return requested


def target_for_shape(model: Checkpoint, shape: Shape) -> Target:
    """A cut to exactly that shape."""
    before = model.geometry
    return target_from_amounts(
        model,
        None if shape.head_k_dim == before.head_k_dim else shape.head_k_dim,
        None if shape.head_v_dim == before.head_v_dim else shape.head_v_dim,
    )
