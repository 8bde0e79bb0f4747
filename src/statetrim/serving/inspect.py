"""Size of the state of a model in bytes per sequence, before and after pruning."""

from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from ..artifacts.plan import arbitrary_plan
from ..artifacts.state_sizes import DTYPE_BYTES, StateSize, stored_dtype
from ..cut.geometry import KERNEL_TILE, Geometry
from ..cut.request import parse_request
from ..cut.shape import Shape
from ..cut.target import Target
from ..errors import StatetrimError
from ..families.contract import text_config
from ..options import takes_options
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from ..storage.quantized.find import describe_schemes, quantization_method
from .capacity.compare import capacities, default_capacity, default_state_dtype
from .deployment import Deployment, deployment
from .matrix import known_engines
from .options import InspectOptions, ServingOptions
from .shapes import Answer, answers_by_engine, common_shapes
from .target import candidate_targets, resolve_target, target_for_shape


@dataclass(frozen=True)
class ServedShape:
    """A shape, its share of the bytes of the current state, and whether each engine serves it."""

    shape: str
    share: float
    engines: dict[str, Answer]
    state_dtype: str  # the engine's default if sequences are counted, else float32
    state_bytes: int  # of a sequence
    sequences: float | None = None  # that fit; None if they are not counted, or it is refused

    def without(self, *answers: Answer) -> list[str]:
        """The engines that give one of these answers."""
        return [name for name, answer in self.engines.items() if answer in answers]


@dataclass(frozen=True)
class StateReport:
    """What `inspect` reports about a model."""

    model_type: str
    layers: int
    total_layers: int | None
    num_k_heads: int
    num_v_heads: int
    parameters: int  # 0: only the config was read
    parameters_after: int
    quantized: str  # how many weights are stored by which scheme, and how many a cut touches
    conv_dtype: str
    before: StateSize
    after: StateSize | None
    warnings: list[str]
    deployment: Deployment
    shapes: list[ServedShape]  # to choose from, if not one cut is asked for
    geometry: Geometry
    geometry_after: Geometry | None

    def as_json(self) -> dict[str, Any]:
        """All fields but the geometries, whose figures other fields have."""
        fields = asdict(self)
        del fields["geometry"], fields["geometry_after"]
        return fields


@takes_options(InspectOptions)
def inspect(model: ModelLike, options: InspectOptions) -> StateReport:
    """Describe a model's state, and its size if it is cut `to` "64x64" channels per head, "12MiB"
    per sequence, "8heads", or by layer. For a share ("50%") or several shapes ("96x96,64x64") it
    lists the shapes that `trim` would compare; without `to`, common ones.

    With `memory_gib` of cache it also shows how many sequences of `context` tokens fit in `engine`,
    and which of its flags to try first. Of a hub id only the config is downloaded. A model that
    cannot be pruned in this way gets a warning in the report, and no size after the cut. Raises
    StatetrimError for what it cannot keep, and for `context` without `memory_gib`.
    """
    model = as_checkpoint(model, weights=False)  # the config is enough
    dtype = stored_dtype(model)
    request = None if options.to is None else parse_request(options.to)
    after, shapes = None, common_shapes(model.geometry)
    warnings = []
    refusal = model.family.refusal(model.config)
    if refusal:
        warnings.append(f"cannot be pruned: {refusal}")
    elif not (request and request.heads) and (reason := model.family.channel_refusal(model.config)):
        warnings.append(f"its channels cannot be cut: {reason}")
    elif request is not None and request.names_several:
        targets = candidate_targets(model, request)
        shapes = [target.after.widest for target in targets]
    elif request is not None:
        after = resolve_target(model, request).after
        for width in sorted({width for shape in after.shapes.values() for width in shape}):
            if width % KERNEL_TILE:
                warnings.append(
                    f"kernels pad {width} channels to a multiple of {KERNEL_TILE}: "
                    f"memory shrinks, time does not"
                )
    return StateReport(
        model_type=str(model.config.get("model_type")),
        layers=len(model.geometry.layers),
        total_layers=_total_layers(model),
        num_k_heads=model.geometry.num_k_heads,
        num_v_heads=model.geometry.num_v_heads,
        parameters=model.parameters,
        parameters_after=_parameters_after(model, after) if after else model.parameters,
        quantized=_quantized_text(model),
        conv_dtype=dtype,
        before=StateSize.from_geometry(model.geometry, dtype),
        after=StateSize.from_geometry(after, dtype) if after else None,
        warnings=warnings,
        deployment=deployment(model, after, options),
        shapes=[] if after else _served_shapes(model, shapes, options),
        geometry=model.geometry,
        geometry_after=after,
    )


def _served_shapes(
    model: Checkpoint, shapes: list[Shape], serving: ServingOptions
) -> list[ServedShape]:
    """The current shape, and those of `shapes` that the model's config can express; empty with
    widths by layer, or if no engine is known for the model type."""
    model_type, before = str(model.config.get("model_type")), model.geometry
    if before.widths or not known_engines(model_type):
        return []
    geometries = {before.widest: before}
    for shape in shapes:
        with suppress(StatetrimError):
            geometries[shape] = target_for_shape(model, shape).after
    served = []
    for shape, geometry in geometries.items():
        rows = [] if serving.memory_gib is None else capacities(model, geometry, serving)
        counted = default_capacity(rows, cut=True)
        dtype = default_state_dtype(serving.counted_by, model) if rows else "float32"
        served.append(
            ServedShape(
                str(shape),
                geometry.state_numel / before.state_numel,
                answers_by_engine(model_type, shape),
                dtype,
                geometry.state_numel * DTYPE_BYTES[dtype],
                counted.fit.sequences if counted else None,
            )
        )
    return served


def _quantized_text(model: Checkpoint) -> str:
    """How weights are quantised, and how many of them a cut touches; empty if none is. If they are
    not read, who quantised them."""
    method = quantization_method(model.config)
    if not model.quantized and method:
        reason = "in a way that is not read" if model.tensors else "only the config was read"
        return f"by {method}, {reason}"
    if not model.quantized:
        return ""
    touched = len(model.quantized.keys() & model.channel_rows.keys())
    return f"{describe_schemes(model.quantized)}; a cut touches {touched}"


def _parameters_after(model: Checkpoint, after: Geometry) -> int:
    """Parameters after pruning: those stored, without the rows of removed channels or heads; 0 if
    only the config was read."""
    if not model.parameters:
        return 0
    masks = arbitrary_plan(Target(model.geometry, after)).kept_masks(model)
    parameters = 0
    for name, tensor in model.logical_tensors.items():
        sizes = [prod(tensor.shape)] if name in model.flattened_heads else list(tensor.shape)
        for dim, mask in masks.get(name, {}).items():
            sizes[dim] = int(mask.sum())
        parameters += prod(sizes)
    return parameters


def _total_layers(model: Checkpoint) -> int | None:
    """Decoder layers of the model, softmax layers included; None if its config does not say."""
    for config in (model.config, text_config(model.config)):
        for value in (config.get("num_hidden_layers"), config.get("layers_block_type")):
            if isinstance(value, int):
                return value
            if isinstance(value, list):
                return len(value)
    return None
