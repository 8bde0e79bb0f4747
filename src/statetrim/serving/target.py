"""A model and a request -> the geometry after pruning."""

from collections.abc import Mapping

from ..cut.geometry import Geometry, Target, resolve_heads, resolve_width
from ..cut.request import OTHERS, Request, Sides
from ..errors import StatetrimError
from ..families.contract import resized_config
from ..maths.formatting import shorten
from ..storage.checkpoint import Checkpoint, check_prunable
from .engines import find_engine
from .matrix import compatibility_of_shape, known_lines
from .shapes import check_engine, engine_serves, nearest_served_shape


def resolve_target(model: Checkpoint, request: Request, for_: str | None = None) -> Target:
    """The target of a request for one shape, for heads, or for widths by layer. With the engine
    `for_`, it is the nearest shape with no more state that the engine serves; if both widths are
    counts, or for heads, only what was requested."""
    if request.names_several:
        raise StatetrimError(
            f"{request} names several shapes, and this takes one, such as 64x64; `statetrim trim` "
            "compares them, and `statetrim inspect` lists them"
        )
    engine = None if for_ is None else find_engine(for_).name
    if request.heads is not None:
        check_prunable(model, "head")
    before = model.geometry
    start = before if request.heads is None else resolve_heads(request.heads, before)
    if request.by_layer:
        target = _by_layer_target(model, request.by_layer, start)
    elif request.shapes:
        target = target_for_shape(model, request.shapes[0], start)
    else:
        target = _checked_target(model, start)
    if engine is None:
        return target
    if request.by_layer or target.after.widths:
        raise StatetrimError(
            f"no engine serves layers of different widths by itself, {engine} neither; leave "
            "out --for, or name one shape"
        )
    exact = bool(request.shapes) and all(isinstance(side, int) for side in request.shapes[0])
    return _served_target(model, target, engine, exact=exact or request.heads is not None)


def target_for_shape(model: Checkpoint, sides: Sides, start: Geometry | None = None) -> Target:
    """The target with these widths, or parts of its own, in every layer, and the heads of `start`,
    by default the model's."""
    before = start or model.geometry
    if before.widths:
        return _by_layer_target(model, {OTHERS: sides}, before)
    keys = resolve_width(sides[0], before.head_k_dim)
    values = resolve_width(sides[1], before.head_v_dim)
    return _checked_target(model, before.resized(keys, values))


def _by_layer_target(model: Checkpoint, by_layer: Mapping[str, Sides], before: Geometry) -> Target:
    """The target with these widths and the heads of `before`; layers that are not named get those
    of "others", or keep all channels."""
    layer_names = [str(layer) for layer in before.layers]
    unknown = sorted(set(by_layer) - {*layer_names, OTHERS})
    if unknown:
        layers = shorten(", ".join(layer_names))
        raise StatetrimError(
            f"layer {unknown[0]} has no linear attention; layers that have: {layers}"
        )
    shapes = {}
    for layer, (keys, values) in before.shapes.items():
        sides = by_layer.get(str(layer), by_layer.get(OTHERS, (keys, values)))
        try:
            shapes[layer] = resolve_width(sides[0], keys), resolve_width(sides[1], values)
        except StatetrimError as error:
            raise StatetrimError(f"layer {layer}: {error}") from None
    return _checked_target(model, before.with_shapes(shapes))


def _checked_target(model: Checkpoint, after: Geometry) -> Target:
    """The target, if it cuts something that the model and its config allow to cut."""
    target = Target(model.geometry, after)
    if not target.axes:
        raise StatetrimError(
            f"keeping {after.shape} leaves all channels of every head, so nothing would change"
        )
    for axis in target.axes:
        check_prunable(model, axis)
    resized_config(model.family, model.config, after)  # raises if the config cannot express it
    return target


def _served_target(model: Checkpoint, target: Target, engine: str, *, exact: bool) -> Target:
    """The target of the nearest shape that `engine` serves, with no more state. Raises
    StatetrimError if there is none, or with `exact` if it is not that of `target` itself."""
    model_type, after = model.model_type, target.after
    check_engine(engine, model_type)
    requested = after.widest
    if exact and engine_serves(engine, model_type, requested):
        return target
    shape = nearest_served_shape(model_type, model.geometry, requested, engine)
    if exact:
        lines = known_lines(compatibility_of_shape(model_type, requested), engine)
        refusing = [line.hardware for line in lines if not line.serves]
        where = f" on {', '.join(refusing)}" if len(refusing) < len(lines) else ""
        raise StatetrimError(
            f"{engine} does not serve a state of {target} for {model_type}{where}; the nearest it "
            f"serves is {shape}, and without --for the state is cut to {target}"
        )
    return target_for_shape(model, shape)
