"""One run of `trim`: a model, its options, and the state that it keeps."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..artifacts.record import header
from ..artifacts.state_sizes import weight_bytes
from ..common_options import parse_names
from ..cut.geometry import Geometry, Target
from ..cut.shape import CHANNEL_AXES, Axis
from ..errors import StatetrimError
from ..evaluation.samples import EVAL_LENGTH, FIRST_LOOK
from ..maths.units import MIB, parse_token_count
from ..methods import find_method, methods_by_axis
from ..options import as_record
from ..runtime.corpus import Corpus
from ..runtime.placement import Placement
from ..serving.candidates import FLAG_DTYPE, Goal, candidate_targets, listed_targets
from ..serving.target import resolve_target
from ..storage.auxiliary_files import auxiliary_files
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.json_file import read_json, write_json
from ..storage.output import file_digest
from ..tasks import read_text
from ..version import __version__
from .options import PLACEMENT_OPTIONS, TrimOptions

RECOVERY_BATCH_SIZE = 16  # sequences per training step
LAYERWISE = "layerwise.json"
_WEIGHT_FRACTION = 0.7  # of free memory; the rest is for activations

logger = logging.getLogger("statetrim")


@dataclass(frozen=True)
class TextSlices:
    """The parts of a text that the steps of a run read, one after the other."""

    calibration: Corpus
    choice: Corpus  # of a shape
    evaluation: Corpus
    recovery: Corpus


@dataclass(frozen=True)
class Job:
    """One run of `trim`, with what follows from its options."""

    model: Checkpoint
    options: TrimOptions
    corpus: Corpus
    target: Target  # the first of the candidates until one is chosen
    candidates: Mapping[Target, Sequence[str]] = field(default_factory=dict)  # -> who refuses it
    shape_tokens: int = 0  # of the corpus, to compare the candidates on
    requested_share: float = 1.0  # of the state's numbers to keep, before an engine limits it
    goal: Goal | None = None  # that the candidates reach
    flag_dtype: str | None = None  # of the state that cuts are served with, by a flag

    @staticmethod
    def from_options(model: Checkpoint, options: TrimOptions) -> "Job":
        """Resolve what the options keep; raises StatetrimError if that is not possible.

        A goal, or a list of shapes, becomes `candidates` if several fit; an engine alone asks for
        half of the bytes. Cuts that a 16-bit state does not spare are measured with one, if it is a
        flag of the engine.
        """
        if options.by_layer:
            check_one_shape(model)
        request, corpus = options.request, Corpus(options.text, model)
        if request.is_goal:
            goal = Goal(
                model, request, options.engine if options.for_ else None, options.counted_in
            )
            goal.check()
            return Job._for_goal(options, corpus, goal, _first_dtype(options, goal))
        if not request.names_several:
            share = resolve_target(model, request).share
            target = resolve_target(model, request, options.for_)
            return Job(model, options, corpus, target, requested_share=share)
        targets = listed_targets(model, request, options.for_)
        share = max(candidate.share for candidate in targets)
        target, tokens = next(iter(targets)), _shape_tokens(options)
        return Job(model, options, corpus, target, targets, tokens, share)

    @staticmethod
    def _for_goal(options: TrimOptions, corpus: Corpus, goal: Goal, state_dtype: str) -> "Job":
        """The job that compares the cuts which reach the goal with the state in `state_dtype`."""
        targets = candidate_targets(goal, state_dtype)
        share = goal.numbers_share(state_dtype)
        if goal.request.gain is not None:
            share = max(candidate.share for candidate in targets)
        job = Job(goal.model, options, corpus, next(iter(targets)), requested_share=share)
        if state_dtype != goal.default_dtype:
            job = replace(job, flag_dtype=state_dtype)
        if len(targets) < 2 and not options.by_layer and not has_dtype_lever(options, goal):
            return job
        return replace(job, candidates=targets, shape_tokens=_shape_tokens(options), goal=goal)

    def in_default_dtype(self) -> "Job":
        """This job, with cuts that reach the goal without a flag for the dtype of the state."""
        assert self.goal is not None
        return Job._for_goal(self.options, self.corpus, self.goal, self.goal.default_dtype)

    @cached_property
    def record(self) -> dict[str, Any]:
        """What identifies this job, for a JSON file: equal jobs have equal records."""
        options = self.options
        left_out = {*PLACEMENT_OPTIONS, "to", "for_"}
        values = as_record(options) | {"tokens": self.tokens, "recover": self.recovery_tokens}
        kept = {"to": str(self.target)}  # however the options name it
        if self.candidates:
            kept = {"to": str(options.request), "for": options.for_ or ""}
        # What the result depends on besides weights and text: the tokenizer, a method of the user.
        files = dict(auxiliary_files(self.model))
        for method in parse_names(options.method):
            if method.endswith(".py"):
                files[f"--method {method}"] = Path(method)
        return {
            **header("trim"),
            "statetrim": __version__,
            "source": require_prunable(self.model).digest,
            "weights": self.model.digest,
            **kept,
            **{name: value for name, value in values.items() if name not in left_out},
            "text_stamp": file_stamps(Path(options.text)),
            "data_stamp": file_stamps(Path(options.data)) if options.data else [],
            "files": {name: file_digest(path) for name, path in files.items()},
        }

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What every stage of this job depends on, besides its own options and inputs."""
        fields = ("statetrim", "source", "text_stamp", "data_stamp", "files")
        device = self.options.placement.input_device.type
        return {"device": device} | {name: self.record[name] for name in fields}

    @property
    def after(self) -> Geometry:
        """The state after the cut; that of the first candidate until a shape is chosen."""
        return self.target.after

    def check(self) -> None:
        """Refuse what cannot be pruned or compared, and warn of a shortfall; nothing is written."""
        require_prunable(self.model)
        if self.options.limit < 2 or self.options.length < 2:
            raise StatetrimError("take a limit of 2 or more, and sequences of 2")
        if self.shortfall is not None:
            logger.warning("warning: %s", self.shortfall)

    @property
    def largest_state(self) -> Geometry:
        """The largest state that this run may keep."""
        targets = [*self.candidates] or [self.target]
        return max(targets, key=lambda target: target.after.state_numel).after

    @property
    def shortfall(self) -> str | None:
        """A sentence if no shape keeps the requested share, in whole percent; else None."""
        share = self.largest_state.state_numel / self.model.geometry.state_numel
        if round(100 * share) >= round(100 * self.requested_share):
            return None
        options = self.options
        served = f"that {options.engine.name} serves" if options.for_ else "to choose from"
        return (
            f"{self.requested_share:.0%} of the state was asked for, but the largest shape within "
            f"it {served} is {self.largest_state.shape} (keys x values), which keeps {share:.0%}"
        )

    @property
    def state_dtype(self) -> str:
        """The dtype in which states of cuts are stored when they are measured."""
        return self.options.state_dtype or self.flag_dtype or "float32"

    @property
    def compares_16_bit_state(self) -> bool:
        """Whether the original with a 16-bit state is compared too: `--to` is a goal, and a flag of
        the engine of `--for` gives that state, unless the options fix its dtype."""
        return self.goal is not None and has_dtype_lever(self.options, self.goal)

    @property
    def tokens(self) -> int:
        """Tokens to calibrate on."""
        return parse_token_count(self.options.tokens)

    @property
    def recovery_tokens(self) -> int:
        """Tokens to train on after pruning; 0: no recovery."""
        return parse_token_count(self.options.recover)

    @property
    def slices(self) -> TextSlices:
        """What each step reads of the text."""
        calibrates = bool(self.calibrated_methods) or self.runs_refit or self.shape_tokens > 0
        return TextSlices(
            *self.corpus.divide(
                self.tokens if calibrates else 0,
                self.shape_tokens,
                self.options.limit * EVAL_LENGTH,
                self.recovery_tokens,
            )
        )

    @property
    def text_end(self) -> int:
        """Tokens of the text that are needed in all."""
        slices = self.slices
        if self.recovery_tokens:
            return slices.recovery.stop
        return (slices.evaluation if read_text(self.options.tasks) else slices.choice).stop

    @property
    def methods(self) -> list[str]:
        """The methods that choose along the axes that may be cut."""
        axes: list[Axis] = list(CHANNEL_AXES) if self.options.by_layer else []
        for target in (self.target, *self.candidates):
            axes += target.axes
        by_axis = methods_by_axis(parse_names(self.options.method))
        return list(dict.fromkeys(by_axis[axis] for axis in axes))

    @property
    def calibrated_methods(self) -> list[str]:
        """The methods that need calibration."""
        return [method for method in self.methods if find_method(method).needs]

    @property
    def refits_from_original(self) -> bool:
        """Whether the statistics of the original are enough for a refit: heads that stay whole have
        the same read-out."""
        return self.target.axes == ("head",) and not self.model.family.norm_over_heads

    @property
    def runs_refit(self) -> bool:
        """Whether output projections are refitted; by default if values or heads are removed, or if
        shapes are compared."""
        if self.options.refit is not None:
            return self.options.refit
        return self.shape_tokens > 0 or self.target.axes != ("key",)

    @property
    def shape_samples(self) -> int:
        """Samples of each task on which the candidates are compared."""
        return self.shape_tokens // EVAL_LENGTH

    @cached_property
    def streams_weights(self) -> bool:
        """Whether weights are streamed from disk; by default if two models do not fit in memory."""
        if self.options.layerwise is not None:
            return self.options.layerwise
        return needs_streaming(self.model, 2, self.options.placement)

    @property
    def runs_benchmark(self) -> bool:
        """Whether speed is compared; not with streamed weights, where it would be the disk's."""
        return self.options.benchmark and not self.streams_weights

    def with_fixed_layerwise(self, directory: Path) -> "Job":
        """This job with `layerwise` as its options say, or else as the first run in `directory`
        decided it: the decision is written to layerwise.json, so that a rerun with more or less
        free memory makes the same result. A layerwise job has no `device_map` or `max_memory`."""
        path, layerwise = directory / LAYERWISE, self.options.layerwise
        if layerwise is None:
            if not path.exists():
                write_json(path, {"layerwise": self.streams_weights})
            layerwise = read_json(path, MIB).get("layerwise") is True
        options = replace(self.options, layerwise=None)
        if layerwise:  # layers are loaded one at a time, so there is nothing to spread
            options = replace(options, device_map=None, max_memory=None)
        return replace(self, options=replace(options, layerwise=layerwise))


def _first_dtype(options: TrimOptions, goal: Goal) -> str:
    """The dtype of the state that cuts are served in, if a flag of the engine loses nothing: the
    smaller one if the options ask for it, or if it does not reach the goal without a cut. Other
    dtypes of the options are only measured."""
    requested = goal.has_dtype_lever and options.state_dtype == FLAG_DTYPE
    helps = not goal.is_reached(goal.model.geometry, FLAG_DTYPE)
    if requested or (has_dtype_lever(options, goal) and helps):
        return FLAG_DTYPE
    return goal.default_dtype


def has_dtype_lever(options: TrimOptions, goal: Goal) -> bool:
    """Whether the original with its state in fewer bytes, by a flag, is compared with the cuts."""
    return options.state_dtype is None and goal.has_dtype_lever


def _shape_tokens(options: TrimOptions) -> int:
    return min(options.limit, FIRST_LOOK) * EVAL_LENGTH


def needs_streaming(model: Checkpoint, copies: int, placement: Placement) -> bool:
    """Whether `copies` of the weights take too much of the memory where models run."""
    return copies * weight_bytes(model) > _WEIGHT_FRACTION * placement.free_memory


def recipe_record(model: Checkpoint, options: TrimOptions) -> dict[str, Any]:
    """The recipe that a result stores: its model and options, with absolute paths of files."""
    stored = as_record(options)
    for name in ("text", "data"):
        if stored[name] is not None:
            stored[name] = _absolute(stored[name])
    stored["method"] = ",".join(map(_absolute, parse_names(options.method)))
    return {"model": str(model.path.absolute()), "recipe": stored}


def _absolute(path: str) -> str:
    """The absolute path of a file or folder that exists; else the name as it is."""
    return str(Path(path).absolute()) if Path(path).exists() else path


def file_stamps(text: Path) -> list[str | int]:
    """Name, size, and times of modification and of change (ns) of a text, or of every file below a
    directory, in one list. Empty for a dataset on the hub.

    Links are followed. Programs can set a file's time of modification, but not that of change.
    """
    files = {text} if text.is_file() else set[Path]()
    entered = set[Path]()
    for parent, directories, names in os.walk(text, followlinks=True):
        if (real := Path(parent).resolve()) in entered:
            directories.clear()  # a link back to where we were
            continue
        entered.add(real)
        files |= {path for name in names if (path := Path(parent, name)).is_file()}
    stamps: list[str | int] = []
    for file in sorted(files):
        status = file.stat()
        name = file.relative_to(text).as_posix() if file != text else ""
        stamps += [name, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return stamps


def check_one_shape(model: Checkpoint) -> None:
    """Raise StatetrimError if layers have different widths, of which shares are not measured."""
    if model.geometry.widths:
        raise StatetrimError(
            f"the layers have different widths already ({model.geometry.shape}); allocate widths "
            "by layer of the original instead, or name them, such as --to 0=64x64,others=32x32"
        )
