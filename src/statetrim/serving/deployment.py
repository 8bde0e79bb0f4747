"""Which engines serve a cut, with which command, and how many sequences fit."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..artifacts.scores import Scores
from ..errors import StatetrimError
from ..geometry import Geometry
from ..judging.verdict import Verdict, cut_models, judge_cut
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from .capacity.compare import Capacity, capacities
from .capacity.try_first import Gain, gains
from .engines import (
    Compatibility,
    ServedBy,
    Shape,
    compatibility_of_geometry,
    known_engines,
    serve_command,
)
from .options import DEFAULT_CONTEXT, ServingOptions
from .shapes import nearest_served_shape

MODEL_PLACEHOLDER = "MODEL"  # in commands: the path of the original
CUT_PLACEHOLDER = "SMALL"  # in commands: the path that prune will write


@dataclass(frozen=True)
class Deployment:
    """Engines, commands and capacity for one shape of the state."""

    shape: str
    engines: list[Compatibility]
    commands: dict[str, str]  # engine -> command line, for engines that serve the shape
    served_by: ServedBy
    everywhere: str | None  # if one refuses it, the nearest cut that every known engine serves
    engine: str  # whose arithmetic `capacity` and `try_first` follow
    memory_gib: float | None  # of cache
    context: int | None  # tokens
    capacity: list[Capacity]  # original, then cut; each in the engine's dtypes of the state
    try_first: list[Gain]  # flags of the engine, without and with the cut


def deployment(model: Checkpoint, after: Geometry | None, serving: ServingOptions) -> Deployment:
    """How to serve the state `after` pruning, or the model's own state if it is None.

    Capacities are computed only with `serving.memory_gib`, for 4096 tokens unless it says
    otherwise. Raises StatetrimError if the size of the KV cache is not known.
    """
    model_type, shape = str(model.config.get("model_type")), after or model.geometry
    counted = [] if serving.memory_gib is None else capacities(model, after, serving)
    return Deployment(
        shape=shape.shape.replace(" x ", "x"),
        engines=compatibility_of_geometry(model_type, shape),
        commands=serve_commands(model, shape, CUT_PLACEHOLDER if after else MODEL_PLACEHOLDER),
        served_by=ServedBy.of(model_type, shape),
        everywhere=_shape_for_every_engine(model_type, model.geometry, after),
        engine=serving.engine,
        memory_gib=serving.memory_gib,
        context=None if serving.memory_gib is None else serving.context or DEFAULT_CONTEXT,
        capacity=counted,
        try_first=gains(model, after, serving) if counted else [],
    )


def ship_verdict(
    scores: Scores | None,
    name: str | None,
    model: Checkpoint | None,
    doubts: Sequence[str] = (),
    faults: Sequence[str] = (),
    earlier: Scores | None = None,
) -> Verdict:
    """The verdict on the checkpoint `model`, which the scores call `name`, as `judge_cut` gives it
    with the engines whose current version serves the shape of `model` on some hardware, widths by
    layer with a plugin; None if nothing is known of the shape.

    `doubts` are reasons not to trust the scores; any of `faults`, which `verify` found, means do
    not ship; `earlier` are the scores by which its shape was chosen.
    """
    served: list[str] | None = None
    if model is not None:
        answers = ServedBy.of(str(model.config.get("model_type")), model.geometry)
        served = [*answers.served, *answers.by_plugin] if answers.is_known else None
    return judge_cut(scores, name, served=served, doubts=doubts, faults=faults, earlier=earlier)


def ship_verdicts(scores: Scores, models: Sequence[ModelLike]) -> list[Verdict]:
    """A verdict per cut, and on random cuts only if there are no others; `models` are those of the
    scores after the original, in their order."""
    by_name = dict(zip(scores.models[1:], models, strict=True))
    return [ship_verdict(scores, name, as_checkpoint(by_name[name])) for name in cut_models(scores)]


def engine_rows(lines: Sequence[Compatibility]) -> list[tuple[str, ...]]:
    """Rows of engine and versions, hardware, verdict, evidence and remark: of current versions, and
    of older ones that serve if the current version does not."""
    refusing = {line.engine for line in lines if line.current and not line.serves}
    hardware_by_cells: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        if line.current or (line.serves and line.engine in refusing):
            remark = line.error or line.note
            if line.flag and not line.error:  # the command has it, because a cell may wrap it
                add_text = f"add {line.flag}"
                remark = "needs the flag in its command below" if line.serves else add_text
            cells = (f"{line.engine} {line.versions}", line.verdict, line.evidence, remark)
            hardware_by_cells.setdefault(cells, []).append(line.hardware)
    return [(name, ", ".join(on), *cells) for (name, *cells), on in hardware_by_cells.items()]


def serve_commands(
    model: Checkpoint, shape: Geometry, path: str, *, first_engine: str | None = None
) -> dict[str, str]:
    """Engine -> command line that serves the model at `path` with a state of this shape.

    An older version has an entry, "ENGINE VERSIONS", if the current one does not serve.
    `first_engine` comes first. Empty if no engine is known to serve it.
    """
    lines = compatibility_of_geometry(str(model.config.get("model_type")), shape)
    current = {line.engine for line in lines if line.current and line.serves}
    chosen: dict[str, Compatibility] = {}
    for line in lines:
        if line.serves and (line.current or line.engine not in current):
            name = line.engine if line.current else f"{line.engine} {line.versions}"
            if name not in chosen or (line.flag and not chosen[name].flag):
                chosen[name] = line  # the flag is harmless on other hardware
    no_mtp = lacks_mtp(model)
    commands = {}
    for name in sorted(chosen, key=lambda name: name != first_engine):
        commands[name] = serve_command(chosen[name], path, without_mtp=no_mtp)
    return commands


def lacks_mtp(model: Checkpoint) -> bool:
    """Whether a Qwen model has no multi-token-prediction head, so that llama.cpp's converter needs
    --no-mtp, which it refuses for other types. False for those, and if no tensors were read."""
    if not str(model.config.get("model_type")).startswith("qwen") or not model.tensors:
        return False
    return not any(name.startswith("mtp.") for name in model.tensors)


def _shape_for_every_engine(
    model_type: str, before: Geometry, after: Geometry | None
) -> str | None:
    """The cut nearest to `after` that every known engine serves; None if that is `after` itself,
    for widths by layer, without a cut, and if there is none."""
    if after is None or after.widths or not known_engines(model_type):
        return None
    try:
        nearest = nearest_served_shape(model_type, before, after.head_k_dim, after.head_v_dim)
    except StatetrimError:
        return None
    same = nearest in (Shape.from_geometry(after), Shape.from_geometry(before))
    return None if same else str(nearest)
