"""A model and a request -> the geometry after pruning, or several to compare."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..artifacts.state_sizes import StateSize, stored_dtype
from ..errors import StatetrimError
from ..families.contract import resized_config
from ..geometry import KERNEL_TILE, Geometry, resolve_heads, resolve_width
from ..maths.formatting import shorten
from ..maths.units import MIB
from ..request import OTHERS, Request, Sides
from ..storage.checkpoint import Checkpoint, check_heads_removable, check_values_prunable
from .engine_names import engine_name
from .engines import Shape, compatibility_of_shape, known_engines, known_lines
from .shapes import (
    candidate_shapes,
    check_engine,
    engine_serves,
    nearest_served_shape,
    refusing_engines,
)


@dataclass(frozen=True)
class Target:
    """The geometry before and after pruning."""

    before: Geometry
    after: Geometry

    @property
    def removes_keys(self) -> bool:
        """Whether a layer loses key channels."""
        return self._widths(0, self.before) != self._widths(0, self.after)

    @property
    def removes_values(self) -> bool:
        """Whether a layer loses value channels."""
        return self._widths(1, self.before) != self._widths(1, self.after)

    @property
    def share(self) -> float:
        """The part of the state's bytes that is kept."""
        return self.after.state_numel / self.before.state_numel

    @property
    def removes_heads(self) -> bool:
        return self.before.num_v_heads != self.after.num_v_heads

    def __str__(self) -> str:
        """What is kept, as `parse_request` reads it."""
        if self.removes_heads:
            return f"{self.after.num_v_heads}heads"
        if self.after.widths:
            return ",".join(f"{layer}={k}x{v}" for layer, (k, v) in self.after.shapes.items())
        return f"{self.after.head_k_dim}x{self.after.head_v_dim}"

    @staticmethod
    def _widths(axis: int, geometry: Geometry) -> list[int]:
        return [shape[axis] for shape in geometry.shapes.values()]


def resolve_target(model: Checkpoint, request: Request, for_: str | None = None) -> Target:
    """The target of a request for one shape, for heads, or for widths by layer.

    With the engine `for_`, it is the nearest shape with no more state that the engine serves; if
    both widths are counts, or for heads, only what was requested. Raises StatetrimError if there is
    none, for widths by layer with an engine, if nothing would be cut, if the model or its config
    does not allow such a state, and for a request of several shapes.
    """
    if request.names_several:
        raise StatetrimError(
            f"{request} names several shapes, and this takes one, such as 64x64; `statetrim trim` "
            "compares them, and `statetrim inspect` lists them"
        )
    engine = None if for_ is None else engine_name(for_)
    if request.heads is not None:
        return _head_target(model, request, engine)
    if request.by_layer:
        target = _by_layer_target(model, request.by_layer)
    elif request.max_mib is not None:
        target = _target_within_bytes(model, float(request.max_mib) * MIB)
    else:
        target = target_for_shape(model, request.shapes[0])
    if engine is None:
        return target
    if request.by_layer or target.after.widths:
        raise StatetrimError(
            f"no engine serves layers of different widths by itself, {engine} neither; leave "
            "out --for, or name one shape"
        )
    exact = bool(request.shapes) and all(isinstance(side, int) for side in request.shapes[0])
    return _served_target(model, target, engine, exact=exact)


def candidate_targets(
    model: Checkpoint, request: Request, for_: str | None = None
) -> dict[Target, tuple[str, ...]]:
    """The targets to compare, with the engines that refuse each: the shapes of the request; or
    those within its share of the bytes that the model's config can express and the engine `for_`
    serves, and without it those that every engine serves first.

    Raises StatetrimError if there is none, and for a listed shape that `for_` does not serve.
    """
    model_type = str(model.config.get("model_type"))
    targets: dict[Target, tuple[str, ...]] = {}
    if request.share is None:
        for sides in request.shapes:
            target = resolve_target(model, Request(shapes=(sides,)), for_)
            targets[target] = refusing_engines(model_type, Shape.from_geometry(target.after))
        if len(targets) < len(request.shapes):
            raise StatetrimError(f"{request} names a shape twice; shapes to compare must differ")
        return targets
    share = float(request.share)
    engine = None if for_ is None else engine_name(for_)
    last_error: StatetrimError | None = None
    for shape, refused in candidate_shapes(model_type, model.geometry, share, engine).items():
        try:
            targets[target_for_shape(model, shape)] = refused
        except StatetrimError as error:  # values cannot be pruned, or not to that width
            last_error = error
    if not targets:
        raise last_error or StatetrimError(f"no shape of at most {share:.0%} of the state is left")
    return targets


def target_for_shape(model: Checkpoint, sides: Sides) -> Target:
    """The target with these widths, or parts of its own, in every layer; raises StatetrimError if
    the model does not allow it, or a layer has fewer channels."""
    if model.geometry.widths:
        return _by_layer_target(model, {OTHERS: sides})
    before = model.geometry
    keys = resolve_width(sides[0], before.head_k_dim)
    values = resolve_width(sides[1], before.head_v_dim)
    return _checked_target(model, before.resized(keys, values))


def _by_layer_target(model: Checkpoint, by_layer: Mapping[str, Sides]) -> Target:
    """The target with these widths; layers that are not named get those of "others", or keep all
    channels."""
    before = model.geometry
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
    if not (target.removes_keys or target.removes_values):
        raise StatetrimError(
            f"keeping {after.shape} leaves all channels of every head, so nothing would change"
        )
    if target.removes_values:
        check_values_prunable(model)
    resized_config(model.family, model.config, after)  # raises if the config cannot express it
    return target


def _head_target(model: Checkpoint, request: Request, engine: str | None) -> Target:
    """The target with that number of value heads, which keep their shape; raises StatetrimError if
    heads cannot be removed, or if the engine is not known to serve that shape."""
    assert request.heads is not None
    check_heads_removable(model)
    after = resolve_heads(request.heads, model.geometry)
    resized_config(model.family, model.config, after)
    model_type, shape = str(model.config.get("model_type")), Shape.from_geometry(after)
    serves = engine in known_engines(model_type) and engine_serves(str(engine), model_type, shape)
    if engine is not None and not serves:
        raise StatetrimError(
            f"{engine} is not known to serve heads of {after.shape} for {model_type}, however many"
        )
    return Target(model.geometry, after)


def _target_within_bytes(model: Checkpoint, max_bytes: float) -> Target:
    """The target with the most key channels with which the float32 state and the convolution state
    of a sequence take at most `max_bytes`; values, and layers with fewer keys, keep their width.

    Wide heads keep multiples of 16 channels, to which kernels pad them. Raises StatetrimError if
    the model fits already or one channel per head is too much.
    """
    before, dtype = model.geometry, stored_dtype(model)
    nbytes = StateSize.from_geometry(before, dtype).total
    if nbytes <= max_bytes:
        raise StatetrimError(
            f"a sequence takes {nbytes / MIB:.1f} MiB now, which is within the "
            f"{max_bytes / MIB:.1f} MiB asked for; nothing needs to be cut"
        )
    step = KERNEL_TILE if before.head_k_dim >= 4 * KERNEL_TILE else 1
    after = before
    for width in range((before.head_k_dim - 1) // step * step, 0, -step):
        shapes = {layer: (min(k, width), v) for layer, (k, v) in before.shapes.items()}
        after = before.with_shapes(shapes)
        nbytes = StateSize.from_geometry(after, dtype).total
        if nbytes <= max_bytes:
            return _checked_target(model, after)
    raise StatetrimError(
        f"even with {after.head_k_dim} channels per head a sequence takes "
        f"{nbytes / MIB:.1f} MiB, more than the {max_bytes / MIB:.1f} MiB asked for"
    )


def _served_target(model: Checkpoint, target: Target, engine: str, *, exact: bool) -> Target:
    """The target of the nearest shape that `engine` serves, with no more state. Raises
    StatetrimError if there is none, or with `exact` if it is not that of `target` itself."""
    model_type, after = str(model.config.get("model_type")), target.after
    check_engine(engine, model_type)
    requested = Shape.from_geometry(after)
    if exact and engine_serves(engine, model_type, requested):
        return target
    shape = nearest_served_shape(
        model_type, model.geometry, after.head_k_dim, after.head_v_dim, engine=engine
    )
    if exact:
        lines = known_lines(compatibility_of_shape(model_type, requested), engine)
        refusing = [line.hardware for line in lines if not line.serves]
        where = f" on {', '.join(refusing)}" if len(refusing) < len(lines) else ""
        raise StatetrimError(
            f"{engine} does not serve a state of {target} for {model_type}{where}; the nearest it "
            f"serves is {shape}, and without --for the state is cut to {target}"
        )
    return target_for_shape(model, shape)
