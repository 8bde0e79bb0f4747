"""One run of `trim`: a model, its options, and the state they ask for."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ..geometry import Geometry
from ..maths.units import MIB, token_count
from ..methods import find_method
from ..serving.target import Target, target_for
from ..storage.checkpoint import Checkpoint, with_weights
from ..storage.json_file import read_object, write_object
from ..storage.text import check_source
from ..tasks import find_tasks
from ..version import __version__
from . import estimate
from .options import ASKED, TrimOptions

CONTROL = "rand"
SEQUENCE = 512  # tokens of a sequence that is evaluated
RECOVERED_BATCH = 16  # sequences a step


@dataclass(frozen=True)
class Job:
    """One run of `trim`, with what follows from its options."""

    model: Checkpoint
    options: TrimOptions
    target: Target

    @staticmethod
    def of(model: Checkpoint, options: TrimOptions) -> "Job":
        asked = {name: getattr(options, name) for name in ASKED}
        return Job(model, options, target_for(model, **asked))

    @property
    def record(self) -> dict[str, Any]:
        return record(self.model, self.options, self.target)

    @property
    def after(self) -> Geometry:
        """The state after the cut."""
        return self.target.after

    def check(self) -> None:
        """Refuse what cannot be, before anything is written."""
        with_weights(self.model)
        check_source(self.options.text)
        find_tasks(self.options.tasks)
        self.calibrated_methods  # noqa: B018  (unknown ones are refused)

    @property
    def tokens(self) -> int:
        """Tokens to calibrate on."""
        return token_count(self.options.tokens)

    @property
    def recovered_tokens(self) -> int:
        """Tokens to recover on; 0: not at all."""
        return token_count(self.options.recover)

    @property
    def read_tokens(self) -> int:
        """Tokens of the text that the whole run reads."""
        if self.recovered_tokens:
            return self.trained_from + self.recovered_tokens
        return self.trained_from if "text" in self.options.tasks else self.measured_from

    @property
    def methods(self) -> list[str]:
        """One for each axis that is cut."""
        axes = (
            (self.target.keep, self.options.method),
            (self.target.keep_values, self.options.value_method),
        )
        return [method for keep, method in axes if keep is not None]

    @property
    def calibrated_methods(self) -> list[str]:
        """The methods that need calibration."""
        return [method for method in self.methods if find_method(method).needs]

    @property
    def refits(self) -> bool:
        refit = self.options.refit
        return self.target.keep_values is not None if refit is None else refit

    @property
    def measured_from(self) -> int:
        """Tokens of the text that calibration has seen; what follows is new to the model."""
        return self.tokens if self.calibrated_methods or self.refits else 0

    @property
    def trained_from(self) -> int:
        """Tokens of the text that calibration or evaluation read; recovery takes what follows."""
        return self.measured_from + self.options.limit * SEQUENCE

    @property
    def streamed(self) -> bool:
        """Whether weights stay on disk; two models are compared side by side."""
        if self.options.layerwise is not None:
            return self.options.layerwise
        return estimate.needs_streaming(self.model, 2, estimate.free_memory())

    @property
    def times(self) -> bool:
        """Timing streamed weights would time the disk."""
        return self.options.benchmark and not self.streamed

    def decided(self, directory: Path) -> "Job":
        """Whether weights are streamed is decided once: a rerun may find more memory, or less."""
        path = directory / "layerwise.json"
        if not path.exists():
            write_object(path, {"layerwise": self.streamed})
        layerwise = read_object(path, MIB).get("layerwise") is True
        return replace(self, options=replace(self.options, layerwise=layerwise))


def record(model: Checkpoint, options: TrimOptions, target: Target | None) -> dict[str, Any]:
    """What identifies a job: the same job has the same record, on another day too, and in whatever
    way its state was asked for (`keep` and `keep_values` say it)."""
    settled = plain(options) | {
        "keep": target and target.keep,
        "keep_values": target and target.keep_values,
        "tokens": token_count(options.tokens),
        "recover": token_count(options.recover),
    }
    return {
        "format": "statetrim trim",
        "version": 1,
        "statetrim": __version__,
        "source": with_weights(model).digest,
        "weights": model.fingerprint,
        **{name: value for name, value in settled.items() if name not in ASKED[2:]},
        "text_stamp": _stamp(Path(options.text)),
    }


def plain(options: TrimOptions) -> dict[str, Any]:
    """The options as they were given, for a JSON file."""
    return {name: _plain(value) for name, value in asdict(options).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def _stamp(text: Path) -> list[int]:
    """Size and time of the text's files, so that a changed text is another job."""
    files = sorted(text.iterdir()) if text.is_dir() else [text] if text.is_file() else []
    return [number for file in files for number in (file.stat().st_size, file.stat().st_mtime_ns)]
