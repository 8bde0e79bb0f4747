"""Size of the state of a model in bytes per sequence, before and after pruning."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from ..artifacts.plan import arbitrary_plan
from ..artifacts.state_sizes import DTYPE_BYTES, StateSize, stored_dtype
from ..cut.geometry import KERNEL_TILE, Geometry, Target
from ..cut.request import Request, parse_request
from ..errors import StatetrimError
from ..options import takes_options
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from ..storage.quantized.find import describe_schemes, quantization_method
from .candidates import FLAG_DTYPE, Goal, candidate_targets, listed_targets
from .capacity.compare import capacities, default_state_dtype, prefix_warnings
from .deployment import Deployment, deployment
from .matrix import known_engines, unserved_text
from .options import InspectOptions, ServingOptions
from .shapes import Answer, answers_by_engine, common_shapes
from .target import resolve_target, target_for_shape


@dataclass(frozen=True)
class ServedShape:
    """A cut, its share of the bytes of the current state, and whether each engine serves it."""

    shape: str  # as `--to` reads it, and with a flag for the dtype of the state " in DTYPE"
    share: float
    engines: dict[str, Answer]
    state_dtype: str  # if sequences are counted by a flag or the engine's default, else float32
    state_bytes: int  # of a sequence
    sequences: float | None = None  # that fit; None if they are not counted, or it is refused
    shortest_prefix: int | None = None  # tokens of a shared prefix that is cached; likewise

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
    """Describe a model's state, and its size if it is cut `to` "64x64" channels per head,
    "8heads", or by layer. For a share ("50%"), a gain ("2x", in `engine`) or several
    shapes ("96x96,64x64") it lists the cuts that `trim` would compare; without `to`, common ones.

    With `memory_gib` of cache it also shows how many sequences of `context` tokens fit in `engine`,
    and which of its flags to try first. Of a hub id only the config is downloaded. A model that
    cannot be pruned in this way gets a warning in the report, and no size after the cut. Raises
    StatetrimError for what it cannot keep, and for `context` without `memory_gib`.
    """
    model = as_checkpoint(model, weights=False)  # the config is enough
    dtype = stored_dtype(model)
    request = None if options.to is None else parse_request(options.to)
    after, cuts, warnings = None, list[Cut](), list[str]()
    for shape in common_shapes(model.geometry):
        with suppress(StatetrimError):  # the config cannot express it
            cuts.append((str(shape), target_for_shape(model, shape).after, None))
    refusal = model.family.refusal(model.config)
    if refusal:
        warnings.append(f"cannot be pruned: {refusal}")
    elif not (request and request.heads) and (reason := model.family.channel_refusal(model.config)):
        warnings.append(f"its channels cannot be cut: {reason}")
    elif request is not None and request.names_several:
        cuts = _compared_cuts(model, request, options)
    elif request is not None:
        after = resolve_target(model, request).after
        for width in sorted({width for shape in after.shapes.values() for width in shape}):
            if width % KERNEL_TILE:
                warnings.append(
                    f"kernels pad {width} channels to a multiple of {KERNEL_TILE}: "
                    f"memory shrinks, time does not"
                )
    served = deployment(model, after, options)
    warnings += prefix_warnings(served.capacity, options)
    if served.capacity and (text := unserved_text(model.model_type, options.counted_by)):
        warnings.append(text)
    return StateReport(
        model_type=model.model_type,
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
        deployment=served,
        shapes=[] if after else _served_shapes(model, cuts, options),
        geometry=model.geometry,
        geometry_after=after,
    )


Cut = tuple[str, Geometry, str | None]
"""What is kept, the state after it, and the dtype of the state that a flag sets."""


def _compared_cuts(model: Checkpoint, request: Request, options: InspectOptions) -> list[Cut]:
    """What `trim` would compare; for a gain in sequences also the flag for a smaller state."""
    if not request.is_goal:
        targets = listed_targets(model, request)
        return [(str(target), target.after, None) for target in targets]
    engine = None if request.gain is None else options.counted_by
    goal = Goal(model, request, engine, options.in_engine(options.counted_by))
    cuts: list[Cut] = []
    dtype = None
    if goal.has_dtype_lever:
        cuts.append((f"no cut in {FLAG_DTYPE}", model.geometry, FLAG_DTYPE))
        dtype = None if goal.is_reached(model.geometry, FLAG_DTYPE) else FLAG_DTYPE
    suffix = f" in {dtype}" if dtype else ""
    for target in candidate_targets(goal, dtype or goal.default_dtype):
        cuts.append((f"{target}{suffix}", target.after, dtype))
    return cuts


def _served_shapes(
    model: Checkpoint, cuts: Sequence[Cut], serving: ServingOptions
) -> list[ServedShape]:
    """The current state and those after `cuts`; empty if no engine is known for them."""
    model_type, before = model.model_type, model.geometry
    if before.widths or not known_engines(model_type):
        return []
    served, default = [], default_state_dtype(serving.counted_by, model)
    for name, geometry, flag_dtype in ((str(before.widest), before, None), *cuts):
        rows = [] if serving.memory_gib is None else capacities(model, geometry, serving)
        dtype = flag_dtype or (default if rows else "float32")
        fits = [row.fit for row in rows if row.is_cut and row.state_dtype == dtype]
        size = geometry.state_numel * DTYPE_BYTES[dtype]
        all_bytes = before.state_numel * DTYPE_BYTES[default if rows or flag_dtype else "float32"]
        served.append(
            ServedShape(
                name,
                size / all_bytes,
                answers_by_engine(model_type, geometry.widest),
                dtype,
                size,
                fits[0].sequences if fits else None,
                fits[0].shortest_prefix if fits else None,
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
    for config in (model.config, model.text_config):
        for value in (config.get("num_hidden_layers"), config.get("layers_block_type")):
            if isinstance(value, int):
                return value
            if isinstance(value, list):
                return len(value)
    return None
