"""Everything that decides the result of `trim`, with a default for each; and what it will cost."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..geometry import Geometry
from ..maths.units import MIB, token_count
from ..methods import find_method
from ..serving.target import target_of
from ..storage.checkpoint import Checkpoint, with_weights
from ..storage.json_file import read_object, write_object
from ..storage.text import check_source
from ..tasks import find_tasks
from ..version import __version__
from . import estimate
from .estimate import Machine, Step

CONTROL = "rand"
SEQUENCE = 512  # tokens of a sequence that is evaluated
RECOVERED_BATCH = 16  # sequences a step


@dataclass(frozen=True)
class Job:
    """One run of `trim`: the model, what stays, and how it is chosen and measured."""

    model: Checkpoint
    keep: int | float | str | None
    keep_values: int | float | str | None = None
    text: str | Path = "HuggingFaceFW/fineweb-edu"
    tokens: int = 2**18  # of the text, to calibrate on
    length: int = 512
    batch_size: int = 8
    method: str = "drrqr"
    value_method: str = "readout_greedy"
    refit: bool | None = None  # None: where values are cut, as the norm's scale changes there
    recover: int = 0  # tokens to recover on, after those of calibration; 0: as it was cut
    tasks: tuple[str, ...] = ("text", "mqar")
    data: str | Path | None = None  # where the rows of other tasks lie
    limit: int = 32  # samples of each task
    control: bool = True  # whether a random cut is measured as well
    benchmark: bool = True  # whether both models are timed
    seed: int = 0
    layerwise: bool | None = None  # None: where two models do not fit into memory

    def __post_init__(self) -> None:
        for name in ("tokens", "recover"):  # "256k", too
            object.__setattr__(self, name, token_count(getattr(self, name)))

    @property
    def record(self) -> dict[str, Any]:
        """The same job has the same record, on another day too."""
        options = {
            field.name: getattr(self, field.name) for field in fields(self) if field.name != "model"
        }
        return {
            "format": "statetrim trim",
            "version": 1,
            "statetrim": __version__,
            "source": with_weights(self.model).digest,
            "weights": self.model.fingerprint,
            **{name: _plain(value) for name, value in options.items()},
            "text_stamp": _stamp(Path(self.text)),
        }

    @property
    def after(self) -> Geometry:
        """The shape of the state after the cut, certain to be one that the config can hold."""
        return target_of(self.model, self.keep, self.keep_values).after

    def check(self) -> None:
        """Refuse what cannot be, before anything is written."""
        with_weights(self.model)
        check_source(self.text)
        self.after  # noqa: B018  (a state that cannot be is refused)
        find_tasks(self.tasks)
        self.heard_methods  # noqa: B018  (unknown ones are refused)

    @property
    def read_tokens(self) -> int:
        """Tokens of the text that the whole run reads."""
        if self.recover:
            return self.trained_from + self.recover
        return self.trained_from if "text" in self.tasks else self.measured_from

    @property
    def methods(self) -> list[str]:
        """One for each axis that is cut."""
        axes = ((self.keep, self.method), (self.keep_values, self.value_method))
        return [method for keep, method in axes if keep is not None]

    @property
    def heard_methods(self) -> list[str]:
        """The methods that need calibration."""
        return [method for method in self.methods if find_method(method).needs]

    @property
    def refits(self) -> bool:
        return self.keep_values is not None if self.refit is None else self.refit

    @property
    def measured_from(self) -> int:
        """Tokens of the text that calibration has seen; what follows is new to the model."""
        return self.tokens if self.heard_methods or self.refits else 0

    @property
    def trained_from(self) -> int:
        """Tokens of the text that calibration or evaluation read; recovery takes what follows."""
        return self.measured_from + self.limit * SEQUENCE

    @property
    def streamed(self) -> bool:
        """Whether weights stay on disk; two models are compared side by side."""
        if self.layerwise is not None:
            return self.layerwise
        return estimate.needs_streaming(self.model, 2, estimate.free_memory())

    @property
    def times(self) -> bool:
        """Timing streamed weights would time the disk."""
        return self.benchmark and not self.streamed

    def decided(self, directory: Path) -> "Job":
        """Whether weights are streamed is decided once: a rerun may find more memory, or less."""
        path = directory / "layerwise.json"
        if not path.exists():
            write_object(path, {"layerwise": self.streamed})
        return replace(self, layerwise=read_object(path, MIB).get("layerwise") is True)


def steps(job: Job, machine: Machine) -> list[Step]:
    """What the run will do, and about what that takes."""
    model, after = job.model, job.after
    nbytes = estimate.weight_bytes(model)
    held = 0 if job.streamed else nbytes
    program = estimate.PROGRAM
    found = []
    methods = " and ".join(job.methods)
    if job.heard_methods:
        gram = 2 * 8 * len(after.layers) * after.num_k_heads * model.geometry.head_k_dim**2
        seconds = estimate.reading(model, job.tokens, job.batch_size, job.length, machine)
        does = f"{job.tokens:,} tokens of {job.text}"
        found.append(Step("calibrate", does, seconds, program + held + gram, gram))
    heads = len(after.layers) * after.num_k_heads
    found.append(Step("select", f"{methods}, {heads} heads", heads * 0.01))
    shape = f"{after.head_k_dim} x {after.head_v_dim}"
    found.append(
        Step("prune", f"state {shape}", estimate.copying(nbytes), 64 * 2**20, nbytes),
    )
    read = estimate.reading(model, 2 * 64, 1, 64, machine)
    found.append(
        Step("check", "sliced equals masked, prefill equals decode", 4 * read, program + 4 * held)
    )
    if job.refits:
        seconds = 2 * estimate.reading(model, job.tokens, job.batch_size, job.length, machine)
        width = after.num_v_heads * (model.geometry.head_v_dim + after.head_v_dim)
        moments = 8 * len(after.layers) * after.num_v_heads * after.head_v_dim * width
        does = "output projections, in closed form"
        found.append(Step("refit", does, seconds, program + 2 * held + moments, nbytes + moments))
    if job.recover:
        # Forward and backward of the student, forward of the teacher.
        seconds = 4 * estimate.reading(model, job.recover, RECOVERED_BATCH, job.length, machine)
        does = f"{job.recover:,} tokens, distilled from the original"
        found.append(Step("recover", does, seconds, program + 3 * held, 2 * nbytes))
    models = 2 + bool(job.recover) + (job.control and job.method != CONTROL)
    tokens = job.limit * SEQUENCE * len(job.tasks)
    seconds = (2 * models - 1) * estimate.reading(model, tokens, 8, SEQUENCE, machine)
    does = f"{', '.join(job.tasks)} on {models} models, {job.limit} samples a task"
    found.append(Step("evaluate", does, seconds, program + 2 * held, nbytes))
    if job.times:
        seconds = 60 * estimate.reading(model, 64 * 16, 16, 64, machine)
        found.append(Step("benchmark", "both, in turns", seconds, program + 2 * held))
    found.append(Step("report", "one page", 5.0))
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _stamp(text: Path) -> list[int]:
    """Size and time of the text's files, so that a changed text is another job."""
    files = sorted(text.iterdir()) if text.is_dir() else [text] if text.is_file() else []
    return [number for file in files for number in (file.stat().st_size, file.stat().st_mtime_ns)]
