"""Widths by layer as one of the shapes that `trim` compares: every layer is cut alone, and the
widths with the least predicted loss within the requested share are chosen."""

from dataclasses import replace

from ..analysis.options import SensitivityOptions
from ..analysis.sensitivity import sensitivity
from ..artifacts.sensitivity import Sensitivity
from ..artifacts.statistics import Statistics
from ..cut.geometry import Target
from ..cut.request import parse_request
from ..cut.shape import Shape
from ..errors import StatetrimError
from ..options import derive
from ..progress import OnProgress
from ..selection.allocate import Allocation, allocate, allocate_in_pages
from ..serving.capacity.compare import capacity_text, engine_paging, known_capacities
from ..serving.engines.engine import Engine
from ..serving.options import CacheOptions
from ..serving.shapes import engine_serves
from ..serving.target import resolve_target
from ..storage.checkpoint import Checkpoint
from .job import Job, check_one_shape
from .sensitivity import layer_plans
from .stage import Observer, Stage
from .stages import SENSITIVITY, StageRunner


def allocate_by_layer(
    job: Job, measured: Sensitivity, observer: Observer
) -> tuple[Target, str] | None:
    """The widths by layer with the least predicted loss that take no more memory than one shape of
    the requested share, in the engine, and a sentence on what they are expected to cost and to
    gain. None if one shape for all layers is best, or if no measured widths are narrow enough."""
    try:
        engine, share = job.options.engine, job.requested_share
        allocation = allocate_for_engine(job.model, measured, share, engine, job.flag_dtype)
        target = resolve_target(job.model, parse_request(str(allocation)))
    except StatetrimError as error:
        observer.on_message(f"widths by layer are not compared: {error}")
        return None
    if not target.after.widths:
        observer.on_message(f"no widths by layer are expected to lose less than {target} in all")
        return None
    goal = job.goal
    reached = goal is None or goal.is_reached(target.after, job.flag_dtype or goal.default_dtype)
    if job.options.request.gain is not None and not reached:
        observer.on_message(f"widths by layer are not compared: {target} does not reach the goal")
        return None
    nll, recall = allocation.losses(measured)
    observer.on_message(f"widths by layer: {target}")
    serving = job.options.counted_in
    counted = capacity_text(known_capacities(job.model, target.after, serving), serving)
    return target, (
        f"widths by layer are expected to cost {nll:.3f} nats and {100 * recall:.1f} points of "
        f"recall, if losses of layers add up; {counted}"
    )


def allocate_for_engine(
    model: Checkpoint,
    measured: Sensitivity,
    share: float,
    engine: Engine,
    state_dtype: str | None = None,
) -> Allocation:
    """The widths by layer with the least predicted loss in `share` of the bytes, and for an engine
    with pages in as much of its cache as one shape with that share would take, with a state in
    `state_dtype`, by default that of the engine. Raises StatetrimError if none fits, or if layers
    have different widths already."""
    check_one_shape(model)
    serving = CacheOptions().in_engine(engine)
    if not serving.counted_by.has_pages:
        return allocate(measured, share)
    model_type = model.model_type
    return allocate_in_pages(
        measured,
        share,
        engine_paging(model, serving, state_dtype),
        lambda shape: engine_serves(engine.name, model_type, Shape(*shape)),
    )


def layer_sensitivity(runner: StageRunner, job: Job) -> Stage:
    """What text and recall lose when each layer is cut alone; written to `SENSITIVITY`."""
    path, options = runner.directory / SENSITIVITY, job.options
    statistics = runner.statistics() if runner.calibrated_methods else None
    length = min(SensitivityOptions.length, options.length)
    chosen = derive(
        SensitivityOptions,
        options,
        text=job.slices.choice,
        windows=min(SensitivityOptions.windows, job.shape_tokens // length),
        length=length,
        layerwise=bool(options.layerwise),
        out=None,
    )

    def make(progress: OnProgress) -> None:
        sums = Statistics.load(statistics.artifact) if statistics else None
        plans = list(layer_plans(job.model, chosen, sums))
        sensitivity(job.model, plans, replace(chosen, out=path, progress=progress))

    by_name = {"sensitivity": chosen, "job": job.identity}
    inputs = [statistics] if statistics else []
    return Stage(path, by_name, make, inputs, "sensitivity", "sensitivity")
