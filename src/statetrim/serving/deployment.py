"""Where a model can be served after a cut, with which command, and how many sequences fit."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..artifacts.scores import Scores
from ..artifacts.verdict import Verdict, cut_models, judge_cut
from ..errors import StatetrimError
from ..geometry import Geometry
from ..storage.checkpoint import Checkpoint
from ..storage.models import ModelLike, as_checkpoint
from .capacity import Capacity, capacity
from .engines import (
    Compatibility,
    compatibility_of_geometry,
    known_engines,
    nearest_served_shape,
    serve_command,
)

GIB = 2**30
DEFAULT_CONTEXT = 4096
MODEL_PLACEHOLDER, CUT_PLACEHOLDER = (
    "MODEL",
    "SMALL",
)  # stand in commands for the model, and for what prune will write


@dataclass(frozen=True)
class Deployment:
    """Engines, commands and capacity for one shape of the state."""

    shape: str
    engines: list[Compatibility]
    commands: dict[str, str]  # engine -> what to type, for those that serve the shape
    everywhere: str | None  # the nearest shape that every engine known serves
    memory: int | None
    context: int | None
    capacity: list[Capacity]  # before and after; each with a float32 and a bfloat16 state

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def deployment(
    model: Checkpoint,
    after: Geometry | None,
    *,
    dtype: str,
    memory_gib: float | None = None,
    context: int | None = None,
) -> Deployment:
    """For the state `after` a cut, or for the present one where there is no cut."""
    model_type, shape = str(model.config.get("model_type")), after or model.geometry
    lines = compatibility_of_geometry(model_type, shape)
    return Deployment(
        shape=shape.shape.replace(" x ", "x"),
        engines=lines,
        commands=serve_commands(model, shape, CUT_PLACEHOLDER if after else MODEL_PLACEHOLDER),
        everywhere=_shape_for_every_engine(model_type, model.geometry, after),
        memory=None if memory_gib is None else _memory_bytes(memory_gib),
        context=None if memory_gib is None else context or DEFAULT_CONTEXT,
        capacity=[]
        if memory_gib is None
        else _capacity(model, after, dtype, memory_gib, context or DEFAULT_CONTEXT),
    )


def serving_engines(model: Checkpoint) -> list[str] | None:
    """The engines whose current versions take the model's shape; None where none is known for its
    type, or for its shape."""
    lines = compatibility_of_geometry(str(model.config.get("model_type")), model.geometry)
    known_lines = [line for line in lines if line.current and line.verdict != "unknown"]
    if not known_lines:
        return None
    return list(dict.fromkeys(line.engine for line in known_lines if line.serves))


def ship_verdict(
    scores: Scores | None,
    name: str | None,
    model: Checkpoint | None,
    doubts: Sequence[str] = (),
    faults: Sequence[str] = (),
) -> Verdict:
    """The verdict on `name` of the scores, which is the checkpoint `model`."""
    served = serving_engines(model) if model is not None else None
    return judge_cut(scores, name, served=served, doubts=doubts, faults=faults)


def ship_verdicts(scores: Scores, models: Sequence[ModelLike]) -> list[Verdict]:
    """The verdict on each model after the original that is no random cut."""
    by_name = dict(zip(scores.models[1:], models, strict=True))
    return [ship_verdict(scores, name, as_checkpoint(by_name[name])) for name in cut_models(scores)]


def relevant_lines(lines: Sequence[Compatibility]) -> list[Compatibility]:
    """Current versions, and older ones where only they serve."""
    refusing = {line.engine for line in lines if line.current and not line.serves}
    return [line for line in lines if line.current or (line.serves and line.engine in refusing)]


def serve_commands(
    model: Checkpoint, shape: Geometry, path: str, *, first_engine: str | None = None
) -> dict[str, str]:
    """Engine -> what to type so that it serves the model at `path`, with a state of this shape.

    Older versions have a line where only they serve it. `first` is an engine to begin with.
    """
    lines = compatibility_of_geometry(str(model.config.get("model_type")), shape)
    current = {line.engine for line in lines if line.current and line.serves}
    chosen: dict[str, Compatibility] = {}
    for line in lines:
        if line.serves and (line.current or line.engine not in current):
            name = line.engine if line.current else f"{line.engine} {line.versions}"
            if name not in chosen or (line.flag and not chosen[name].flag):
                chosen[name] = line  # a flag does no harm on other hardware
    no_mtp = lacks_mtp(model)
    return {
        name: serve_command(chosen[name], path, without_mtp=no_mtp)
        for name in sorted(chosen, key=lambda name: name != first_engine)
    }


def lacks_mtp(model: Checkpoint) -> bool:
    """Whether llama.cpp's converter must be told that a Qwen model has no head for several tokens;
    of other types it refuses to be told."""
    if not str(model.config.get("model_type")).startswith("qwen") or not model.tensors:
        return False
    return not any(name.startswith("mtp.") for name in model.tensors)


def _shape_for_every_engine(
    model_type: str, before: Geometry, after: Geometry | None
) -> str | None:
    if after is None or not known_engines(model_type):
        return None
    try:
        return str(nearest_served_shape(model_type, before, after.head_k_dim, after.head_v_dim))
    except StatetrimError:
        return None


def _capacity(
    model: Checkpoint, after: Geometry | None, dtype: str, memory_gib: float, context: int
) -> list[Capacity]:
    softmax_cache = model.family.kv_cache_size(model.config, model.geometry)
    if softmax_cache is None:
        raise StatetrimError(
            f"what the softmax layers of {model.config.get('model_type')} keep of a token is not "
            f"known, so how many sequences fit cannot be told; leave out --memory-gib"
        )
    before = model.geometry
    pairs = [(before, after or before)] + ([] if after is None else [(after, before)])
    return [
        replace(
            capacity(
                geometry,
                softmax_cache,
                memory=_memory_bytes(memory_gib),
                context=context,
                dtype=dtype,
                state_dtype=state_dtype,
            ),
            shape=geometry.describe_against(compared).replace(" x ", "x"),
        )
        for geometry, compared in pairs
        for state_dtype in ("float32", "bfloat16")
    ]


def _memory_bytes(memory_gib: float) -> int:
    if not 0 < memory_gib <= 2**20:
        raise StatetrimError(f"--memory-gib must be a positive number of GiB, not {memory_gib:g}")
    return int(memory_gib * GIB)
