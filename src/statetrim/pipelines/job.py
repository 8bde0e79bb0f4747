"""One run of `trim`: a model, its options, and the state they ask for."""

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..artifacts.header import header
from ..defaults import HEAD_METHOD
from ..errors import StatetrimError
from ..geometry import Geometry
from ..maths.units import MIB, parse_token_count
from ..methods import find_method
from ..serving.engine_names import engine_name
from ..serving.shapes import Candidate
from ..serving.target import Target, target_from_options, targets_within_share
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.json_file import read_json, write_json
from ..storage.output import check_absent
from ..storage.text import check_text_source
from ..tasks import find_tasks
from ..version import __version__
from . import estimate
from .options import GENERATED_FRACTIONS, PLACEMENT_OPTIONS, TARGET_OPTIONS, TrimOptions

CONTROL_METHOD = "rand"
DEFAULT_SHARE = 0.5  # of the state's bytes, where only an engine was named
EVAL_LENGTH = 512  # tokens of a sequence that is evaluated
RECOVERY_BATCH_SIZE = 16  # sequences a step

logger = logging.getLogger("statetrim")


@dataclass(frozen=True)
class Job:
    """One run of `trim`, with what follows from its options.

    Where a share of the state was asked for, several `candidates` are to be compared, and `target`
    is the first of them until they are; `decided_on` counts the tokens that this has read. `asked`
    is the fraction of the state's bytes that the options ask for, whatever an engine serves of it.
    """

    model: Checkpoint
    options: TrimOptions
    target: Target
    candidates: Mapping[Candidate, Target] = field(default_factory=dict)
    shape_tokens: int = 0
    requested_share: float = 1.0

    @staticmethod
    def from_options(model: Checkpoint, options: TrimOptions) -> "Job":
        amounts = {name: getattr(options, name) for name in TARGET_OPTIONS if name != "state"}
        names_only_engine = all(amounts[name] is None for name in amounts if name != "for_")
        if options.state is not None and not names_only_engine:
            raise StatetrimError("--state says what to keep; leave out the other ways to say it")
        if options.state is None and not (names_only_engine and options.for_ is not None):
            any_engine = target_from_options(model, **amounts | {"for_": None}).after
            share = any_engine.state_numel / model.geometry.state_numel
            return Job(model, options, target_from_options(model, **amounts), requested_share=share)
        share = DEFAULT_SHARE if options.state is None else options.state
        targets = targets_within_share(model, share, options.for_)
        shape_tokens = options.limit * EVAL_LENGTH
        return Job(model, options, next(iter(targets.values())), targets, shape_tokens, share)

    @property
    def record(self) -> dict[str, Any]:
        if not self.candidates:
            return job_record(self.model, self.options, self.target)
        requested = {"state": self.options.state, "for": self.options.for_}
        return job_record(self.model, self.options, None) | requested

    @property
    def after(self) -> Geometry:
        """The state after the cut."""
        return self.target.after

    def check(self) -> None:
        """Refuse what cannot be, before anything is written."""
        require_prunable(self.model)
        check_text_source(self.options.text)
        options = self.options
        if options.limit < 2 or options.batch_size < 1 or options.length < 2:
            raise StatetrimError("take a limit of 2 or more, batches of 1, and sequences of 2")
        find_tasks(self.options.tasks)
        self.calibrated_methods  # noqa: B018  (unknown ones are refused)
        if self.shortfall is not None:
            logger.warning("warning: %s", self.shortfall)

    @property
    def largest_state(self) -> Geometry:
        """The largest state that this run may leave."""
        targets = [*self.candidates.values()] or [self.target]
        return max((target.after for target in targets), key=lambda after: after.state_numel)

    @property
    def shortfall(self) -> str | None:
        """A sentence if no shape keeps about as much as was asked for."""
        share = self.largest_state.state_numel / self.model.geometry.state_numel
        if round(100 * share) >= round(100 * self.requested_share):
            return None
        engine = self.options.for_
        served = f"that {engine_name(engine)} serves" if engine else "to choose from"
        return (
            f"{self.requested_share:.0%} of the state was asked for, but the largest shape within it "
            f"{served} is {self.largest_state.shape} (keys x values), which keeps {share:.0%}"
        )

    @property
    def tokens(self) -> int:
        """Tokens to calibrate on."""
        return parse_token_count(self.options.tokens)

    @property
    def recovery_tokens(self) -> int:
        """Tokens to recover on; 0: not at all."""
        return parse_token_count(self.options.recover)

    @property
    def total_text_tokens(self) -> int:
        """Tokens of the text that the whole run reads."""
        if self.recovery_tokens:
            return self.recovery_offset + self.recovery_tokens
        return self.recovery_offset if "text" in self.options.tasks else self.eval_offset

    @property
    def methods(self) -> list[str]:
        """One for each axis that is cut, or for heads."""
        targets = [self.target, *self.candidates.values()]
        axes = (
            ([target.keep for target in targets], self.options.method),
            ([target.keep_values for target in targets], self.options.value_method),
            ([target.keep_heads for target in targets], HEAD_METHOD),
        )
        return [method for amounts, method in axes if any(amount is not None for amount in amounts)]

    @property
    def calibrated_methods(self) -> list[str]:
        """The methods that need calibration."""
        return [method for method in self.methods if find_method(method).needs]

    @property
    def removes_heads(self) -> bool:
        return self.target.keep_heads is not None

    @property
    def runs_refit(self) -> bool:
        if self.options.refit is not None:
            return self.options.refit
        return self.shape_tokens > 0 or self.target.keep_values is not None or self.removes_heads

    @property
    def runs_control(self) -> bool:
        """Whether a random cut is measured for comparison, unless it is one itself."""
        return self.options.control and (
            self.removes_heads or self.options.method != CONTROL_METHOD
        )

    @property
    def eval_offset(self) -> int:
        """Tokens of the text that calibration has seen; what follows is new to the model."""
        return (
            self.tokens if self.calibrated_methods or self.runs_refit else 0
        ) + self.shape_tokens

    @property
    def recovery_offset(self) -> int:
        """Tokens of the text that calibration or evaluation read; recovery takes what follows."""
        return self.eval_offset + self.options.limit * EVAL_LENGTH

    @property
    def streams_weights(self) -> bool:
        """Whether weights stay on disk; two models are compared side by side."""
        if self.options.layerwise is not None:
            return self.options.layerwise
        memory = estimate.free_memory(self.options.placement)
        return estimate.needs_streaming(self.model, 2, memory)

    @property
    def runs_benchmark(self) -> bool:
        """Timing streamed weights would time the disk."""
        return self.options.benchmark and not self.streams_weights

    def with_fixed_layerwise(self, directory: Path) -> "Job":
        """Whether weights are streamed is decided once: a rerun may find more memory, or less; or
        it asks for it, where memory ran out."""
        path = directory / "layerwise.json"
        if not path.exists() or self.options.layerwise:
            write_json(path, {"layerwise": self.streams_weights})
        layerwise = read_json(path, MIB).get("layerwise") is True
        return replace(self, options=replace(self.options, layerwise=layerwise))


def job_record(model: Checkpoint, options: TrimOptions, target: Target | None) -> dict[str, Any]:
    """What identifies a job: the same job has the same record, on another day too, and in whatever
    way its state was asked for (`keep` and `keep_values` say it)."""
    names = {*options_to_json(options)} - {*TARGET_OPTIONS, *PLACEMENT_OPTIONS} | {
        "keep",
        "keep_values",
    }
    later_options = (*GENERATED_FRACTIONS, "dtype", "state_dtype")
    names -= {
        name for name in later_options if not getattr(options, name)
    }  # as before there were any
    if target is not None and target.keep_heads is not None:
        names.add("keep_heads")
    values = options_to_json(options) | {
        "keep": target and target.keep,
        "keep_values": target and target.keep_values,
        "keep_heads": target and target.keep_heads,
        "tokens": parse_token_count(options.tokens),
        "recover": parse_token_count(options.recover),
    }
    return {
        **header("trim"),
        "statetrim": __version__,
        "source": require_prunable(model).digest,
        "weights": model.digest,
        **{name: value for name, value in values.items() if name in names},
        "text_stamp": _file_stamps(Path(options.text)),
    }


def is_comparable(model: Checkpoint, out: Path) -> bool:
    """Whether there may be a result of the same job at `out`. A record needs the digest of all
    weights, which takes time, and which headers alone do not give: then what is there is refused.
    """
    if model.downloaded and out.exists():
        return True
    check_absent(out)
    return False


def options_to_json(options: TrimOptions) -> dict[str, Any]:
    """The options as they were given, for a JSON file."""
    return {name: _to_json_value(value) for name, value in asdict(options).items()}


def recipe_record(model: Checkpoint, options: TrimOptions) -> dict[str, Any]:
    """What a result says of how it was made: files by their whole paths, wherever it is read."""
    stored = options_to_json(options)
    for name in ("text", "data", "method", "value_method"):
        if stored[name] is not None and Path(stored[name]).exists():
            stored[name] = str(Path(stored[name]).absolute())
    return {"model": str(model.path.absolute()), "recipe": stored}


def _to_json_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _file_stamps(text: Path) -> list[int]:
    """Size and time of the text's files, so that a changed text is another job."""
    files = sorted(text.iterdir()) if text.is_dir() else [text] if text.is_file() else []
    return [number for file in files for number in (file.stat().st_size, file.stat().st_mtime_ns)]
