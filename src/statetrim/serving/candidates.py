"""The cuts that reach a goal, a share of the state's bytes or a gain in sequences: shapes, fewer
value heads, and both."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ..artifacts.state_sizes import DTYPE_BYTES
from ..cut.geometry import Geometry, Target, allowed_head_counts, contains, resolve_heads
from ..cut.request import Request
from ..cut.shape import Shape
from ..errors import StatetrimError
from ..storage.checkpoint import Checkpoint, check_prunable
from .capacity.arithmetic import Fit
from .capacity.compare import capacity, default_state_dtype, settings_for
from .engines.engine import Engine
from .options import ServingOptions
from .shapes import candidate_shapes, check_engine, refusing_engines, served_shapes
from .target import resolve_target, target_for_shape

FLAG_DTYPE = "bfloat16"
"""What the flags of engines for the dtype of the state are set to."""
_MAX_COMBINED = 3  # cuts of heads and channels at once
_EIGHTHS = 8

Candidates = Mapping[Target, tuple[str, ...]]
"""Cuts to compare -> the engines that refuse each."""


@dataclass(frozen=True)
class Goal:
    """What a cut of `model` is to reach in `engine`, whose cache is divided as `serving` says;
    without an engine, numbers of the state count, whatever their dtype."""

    model: Checkpoint
    request: Request
    engine: Engine | None
    serving: ServingOptions

    def check(self) -> None:
        """Raise StatetrimError if nothing is known of the engine and the model, and for a gain in
        sequences that is not of an engine with a known arithmetic."""
        if self.engine is not None:
            check_engine(self.engine.name, self.model.model_type)
        if self.request.gain is not None and (self.engine is None or self.engine.fit is None):
            raise StatetrimError(
                f"{self.request} counts sequences, which engines do differently; name one whose "
                "arithmetic is known, such as --for vllm, or give a share of the state: --to 0.5"
            )
        if self.engine is not None and self.engine.fit and self.serving.devices > 1:
            self._fit(self.model.geometry, self.default_dtype)  # raises if they cannot share it

    @cached_property
    def default_dtype(self) -> str:
        """The dtype in which the engine stores the state without a flag."""
        return default_state_dtype(self.engine, self.model) if self.engine else "float32"

    @property
    def has_dtype_lever(self) -> bool:
        """Whether a flag of the engine makes the numbers of this state smaller."""
        offered = self.engine is not None and bool(self.engine.state_dtype_flag)
        return offered and DTYPE_BYTES[FLAG_DTYPE] < DTYPE_BYTES[self.default_dtype]

    def numbers_share(self, dtype: str) -> float:
        """The share of the numbers of the state that may stay if they are stored in `dtype`, of a
        goal that is a share of the bytes; may be more than all."""
        ratio = DTYPE_BYTES[self.default_dtype] / DTYPE_BYTES[dtype]
        return float(self.request.share or 1) * ratio

    def is_reached(self, geometry: Geometry, dtype: str) -> bool:
        """Whether a state of this geometry, stored in `dtype`, reaches the goal."""
        before = self.model.geometry
        if self.request.gain is None:
            return geometry.state_numel <= self.numbers_share(dtype) * before.state_numel
        return self.gain(geometry, dtype) >= self.request.gain

    def _fit(self, geometry: Geometry, dtype: str) -> Fit:
        assert self.engine is not None
        settings = settings_for(self.model, self.serving, dtype)
        return capacity(self.model, geometry, settings, self.engine)

    @cached_property
    def baseline(self) -> float:
        """Sequences of the original that fit; raises StatetrimError if not one does."""
        sequences = self._fit(self.model.geometry, self.default_dtype).sequences
        if not sequences:
            raise StatetrimError(
                f"not one of these {self.serving.counted} fits without a cut, so there is nothing "
                "to multiply; give more --memory-gib"
            )
        return sequences

    def gain(self, geometry: Geometry, dtype: str) -> float:
        """Times the sequences of the original that fit."""
        return self._fit(geometry, dtype).sequences / self.baseline

    @property
    def engine_name(self) -> str | None:
        """Its name in the matrix."""
        return None if self.engine is None else self.engine.name

    def unreachable(self, dtype: str) -> StatetrimError:
        """The error for a goal that no cut reaches."""
        if self.request.share is not None:
            return StatetrimError(
                f"no shape of at most {float(self.request.share):.0%} of the state is known to "
                f"serve {self.model.model_type} on {self.engine_name or 'any engine'}; `statetrim "
                "inspect` lists what is known of each engine"
            )
        before = self.model.geometry
        best, most = before, self.gain(before, dtype)
        for start in (before, *_fewer_heads(self)):
            for shape in served_shapes(self.model.model_type, start, self.engine_name):
                cut = start.resized(*shape)
                if (gain := self.gain(cut, dtype)) > most:
                    best, most = cut, gain
        kept = best.describe_against(before).replace(" x ", "x")
        how = f"with a state of {kept} in {dtype}" if best is not before else "without a cut"
        return StatetrimError(
            f"no cut gives {self.request} of the {self.serving.counted}; the most is {most:.2f}x, "
            f"{how}"
        )


def listed_targets(model: Checkpoint, request: Request, for_: str | None = None) -> Candidates:
    """The targets of the shapes that a request lists, which must differ."""
    model_type = model.model_type
    targets: dict[Target, tuple[str, ...]] = {}
    for sides in request.shapes:
        target = resolve_target(model, Request(shapes=(sides,)), for_)
        targets[target] = refusing_engines(model_type, target.after.widest)
    if len(targets) < len(request.shapes):
        raise StatetrimError(f"{request} names a shape twice; shapes to compare must differ")
    return targets


def candidate_targets(goal: Goal, dtype: str) -> Candidates:
    """The cuts that reach the goal with the state in `dtype`, and that the model's config can
    express and the engine serves: shapes, then fewer heads, then at most three of both. Cuts that
    another one contains are left out. Raises StatetrimError if there is none."""
    goal.check()
    whole = goal.model.geometry
    shapes, error = _reaching(goal, dtype, whole)
    heads: dict[Target, tuple[str, ...]] = {}
    combined: dict[Target, tuple[str, ...]] = {}
    for start in _fewer_heads(goal):
        for target, refused in _reaching(goal, dtype, start)[0].items():
            if any(contains(other.after, target.after) for other in (*shapes, *heads)):
                continue
            (heads if target.axes == ("head",) else combined)[target] = refused

    def preference(cut: Target) -> tuple[bool, int, int]:
        """Better first: what every engine serves, then more key heads, then more state."""
        return bool(combined[cut]), -cut.after.num_k_heads, -cut.after.state_numel

    chosen = shapes | heads
    for target in sorted(combined, key=preference)[:_MAX_COMBINED]:
        chosen[target] = combined[target]
    if not chosen:
        raise error or goal.unreachable(dtype)
    return chosen


def _reaching(
    goal: Goal, dtype: str, start: Geometry
) -> tuple[dict[Target, tuple[str, ...]], StatetrimError | None]:
    """The cuts to the heads of `start` that reach the goal, and why the last of others that do is
    not possible."""

    def fits(shape: Shape) -> bool:
        return goal.is_reached(start.resized(*shape), dtype)

    targets: dict[Target, tuple[str, ...]] = {}
    last_error: StatetrimError | None = None
    for shape, refused in candidate_shapes(
        goal.model.model_type, start, fits, goal.engine_name
    ).items():
        try:
            targets[target_for_shape(goal.model, shape, start)] = refused
        except StatetrimError as error:  # values cannot be pruned, or not to that width
            last_error = error
    return targets, last_error


def _fewer_heads(goal: Goal) -> list[Geometry]:
    """The geometry of the model with fewer value heads, the most first: eighths of all, or as many
    for each key head, as far as the devices can share them. Empty if heads cannot be removed."""
    before, devices = goal.model.geometry, goal.serving.devices
    try:
        check_prunable(goal.model, "head")
    except StatetrimError:
        return []
    counts = {n * before.num_v_heads // _EIGHTHS for n in range(1, _EIGHTHS)}
    counts.update(range(before.num_k_heads, before.num_v_heads, before.num_k_heads))
    geometries = []
    for count in sorted(counts.intersection(allowed_head_counts(before)), reverse=True):
        geometry = resolve_heads(count, before)
        if geometry.num_v_heads % devices == 0 and geometry.num_k_heads % devices == 0:
            geometries.append(geometry)
    return geometries
