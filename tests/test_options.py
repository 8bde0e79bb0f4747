"""The option classes of `trim` and `recover`: the command line fills them, Python takes keyword
arguments, and records store them."""

import dataclasses
import json
import math
from fractions import Fraction
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
from typer.testing import CliRunner

import statetrim as st
from statetrim.commands import app
from statetrim.maths.units import parse_token_count
from statetrim.option_types import alternatives
from statetrim.options import OptionsFunction, as_record, changed_options, option_info
from statetrim.pipelines.job import Job
from statetrim.pipelines.options import TrimRunOptions

ROOT = Path(__file__).parents[1]
KINDS = [st.TrimOptions, st.RecoverOptions]


@pytest.mark.parametrize("options", KINDS)
def test_options_are_frozen_and_print_what_they_hold(options: Any) -> None:
    instance = options(tokens="64k")
    with pytest.raises(dataclasses.FrozenInstanceError):
        instance.tokens = 3
    assert "tokens='64k'" in repr(instance)
    for field in dataclasses.fields(options):
        assert option_info(field).help.endswith("."), field.name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: st.trim("M", out="o", kepe=3), "'kepe'"),
        (lambda: st.trim("M", out="o", batchsize=3), "did you mean 'batch_size'"),
        (lambda: st.recover("M", text="t", out="o", ranks=3), "recover has no option 'ranks'; did"),
        (lambda: st.recover("M", text="t", out="o", zzz=3), "it has: "),
    ],
)
def test_a_mistyped_option_is_named_with_the_nearest(call: Any, message: str) -> None:
    with pytest.raises(st.StatetrimError, match=message):
        call()


@pytest.mark.parametrize(
    ("options", "changes", "flag"),
    [
        (st.TrimOptions, {"layerwise": True, "device_map": "auto"}, "--layerwise"),
        (st.RecoverOptions, {"layerwise": True, "temperature": 1.0}, "--temperature"),
        (st.RecoverOptions, {"layerwise": True, "micro_batch": 2}, "--micro-batch"),
        (st.RecoverOptions, {"layerwise": True, "save_every": 7}, "--save-every"),
        (st.RecoverOptions, {"layerwise": True, "report_to": ["wandb"]}, "--report-to"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    options: Any, changes: dict[str, Any], flag: str
) -> None:
    with pytest.raises(st.StatetrimError, match=flag):
        options(**changes)
    options(layerwise=True)


def test_an_estimate_is_the_dry_run(checkpoint: Any, text: Path, tmp_path: Path) -> None:
    model = checkpoint("qwen3_5_text")
    sizes: dict[str, Any] = {"tokens": "1k", "recover": "1k", "limit": 2}
    steps = st.estimate(model, to="6x100%", text=text, **sizes)
    words = ["trim", str(model), "--to", "6x100%", "--text", str(text), "--tokens", "1k"]
    words += ["--limit", "2", "--recover", "1k", "--dry-run", "--json", "-o", str(tmp_path / "o")]
    plan = json.loads(CliRunner().invoke(app, words).stdout)
    assert [step.name for step in steps] == [step["name"] for step in plan["steps"]]
    assert [step.does for step in steps] == [step["does"] for step in plan["steps"]]
    assert not list(tmp_path.iterdir())
    with pytest.raises(st.StatetrimError, match="estimate has no option 'kepe'"):
        st.estimate(model, kepe=6)  # type: ignore[call-arg]


class Filled(Exception):
    """Stops a command; its argument is the options that the command line filled."""


def filled(monkeypatch: pytest.MonkeyPatch, target: str, words: list[str]) -> Any:
    """The options that the command line makes of `words` and passes to the function `target`."""

    def catch(model: Any, options: Any, *_: Any, **__: Any) -> None:
        raise Filled(options)

    with monkeypatch.context() as patch:
        patch.setattr(target, staticmethod(catch) if target.endswith("Job.from_options") else catch)
        result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, Filled), (result.output, result.exception)
    return result.exception.args[0]


def plain(options: Any) -> dict[str, Any]:
    """The fields of options, with token counts as integers and sequences as lists."""
    fields = dataclasses.asdict(options)
    for name in ("tokens", "skip", "recover"):
        if name in fields:
            fields[name] = parse_token_count(fields[name])
    return {name: list(v) if isinstance(v, tuple) else v for name, v in fields.items()}


def test_the_command_line_has_the_same_defaults(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, out = str(checkpoint("qwen3_5_text")), str(tmp_path / "out")
    options = filled(
        monkeypatch, "statetrim.pipelines.job.Job.from_options", ["trim", model, "-o", out]
    )
    assert plain(options) == plain(TrimRunOptions(out=Path(out)))
    words = ["recover", model, "--text", "t", "-o", out]
    options = filled(monkeypatch, "statetrim.recovery.recover.recover.run", words)
    assert plain(options).items() >= plain(st.RecoverOptions()).items()


def test_the_command_line_fills_every_option(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Flags of all commands are made by the same code; docs/commands.md lists them."""
    model, out = str(checkpoint("qwen3_5_text")), str(tmp_path / "out")
    words = "--to 0.5 --for vllm --by-layer --text t --tokens 7 --method l1"
    words += " --refit --recall 0.3"
    words += " --recover 8 --tasks mqar,squad --data d --limit 9 --batch-size 10 --no-control"
    words += " --benchmark --length 11 --seed 12 --dtype bfloat16 --state-dtype int8"
    words += " --memory-gib 3 --context 5 --kv-dtype fp8 --speculative 2 --no-prefix-caching"
    words += " --devices 2"
    changed: set[str] = set()
    for more in ("--layerwise --device cpu", "--device-map auto --max-memory 0=1GiB"):
        arguments = ["trim", model, "-o", out, *words.split(), *more.split()]
        options = filled(monkeypatch, "statetrim.pipelines.job.Job.from_options", arguments)
        changed |= {*changed_options(options)}
    names = {field.name for field in dataclasses.fields(st.TrimOptions)}
    assert names <= changed and (options.for_, options.to) == ("vllm", "0.5")


@pytest.mark.parametrize(
    ("to", "for_", "kept"),
    [
        ("50%x100%", None, {"to": "6x8"}),
        ("6x50%", None, {"to": "6x4"}),
        ("6x100%", "transformers", {"to": "6x8"}),
        ("50%", None, {"to": "0.5", "for": ""}),
        ("6x8, 4x4", "transformers", {"to": "6x8,4x4", "for": "transformers"}),
    ],
)
def test_jobs_with_the_same_target_have_the_same_record(
    to: str, for_: str | None, kept: dict[str, str], checkpoint: Any
) -> None:
    model = st.open(checkpoint("qwen3_5_text"))
    common = {"text": "owner/name", "tokens": "1k", "method": "drrqr", "recall": 0.0}
    job = Job.from_options(model, st.TrimOptions(to=to, for_=for_, **common))
    resolved = {"source": model.digest, "tokens": 1024, "method": "drrqr", **kept}
    assert job.record.items() >= resolved.items()
    own = {"format", "version", "statetrim", "source", "weights", "files"}
    own |= {"text_stamp", "data_stamp"}
    options = {field.name for field in dataclasses.fields(st.TrimOptions)}
    where = {"device", "device_map", "max_memory", "for_", "to"}  # or as `kept` has it
    assert job.record.keys() == own | (options - where) | kept.keys()


@pytest.mark.parametrize("name", ["to", "seed", "progress"])
def test_no_parameter_of_select_is_an_option_of_a_method(
    name: str, checkpoint: Any, tmp_path: Path
) -> None:
    words = ["select", str(checkpoint("qwen3_5_text")), "--to", "6x100%", "--method", "l1"]
    words += ["-o", str(tmp_path / "plan"), "--option", f"{name}=3"]
    error = CliRunner().invoke(app, words).exception
    assert isinstance(error, st.StatetrimError), error
    assert f"'l1' has no option {name!r}" in str(error)


PROBES: list[tuple[Any, set[Any]]] = [
    ("false", {str}),
    (True, {bool}),
    (5, {int, float, Fraction}),
    (2.5, {float, Fraction}),
    (Fraction(1, 3), {float, Fraction}),
    (10**400, {int}),
    *((number, set()) for number in (math.nan, math.inf, -math.inf)),
    (Path("x"), {Path}),
    (["x"], set()),
    (None, {NoneType}),
]
"""Values, and the types that take them."""


def options_classes() -> list[type]:
    """The options of every function of `st` that takes them by name."""
    functions = [getattr(st, name) for name in dir(st)]
    classes = {f.options_class for f in functions if isinstance(f, OptionsFunction)}
    return sorted(classes, key=lambda each: each.__name__)


@pytest.mark.parametrize("options", options_classes())
def test_a_value_of_another_type_is_refused_for_every_option(options: Any) -> None:
    fields = dataclasses.fields(options)
    required = {field.name: "x" for field in fields if field.default is dataclasses.MISSING}
    checked = 0
    for field in fields:
        types = {*alternatives(field.type)}
        if types <= {bool, int, float, Fraction, str, Path, NoneType}:
            for value, takers in PROBES:
                if not types & takers:
                    with pytest.raises(st.StatetrimError, match=r"^\w+ must be "):
                        options(**required | {field.name: value})
                    checked += 1
    assert checked > 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": "mqar"}, "tasks must be a list, not 'mqar'"),
        ({"tasks": ["mqar", 5]}, "tasks must be a list, each a text"),
        ({"max_memory": 5}, "max_memory must be a text or a mapping"),
        ({"limit": None}, "limit must be a whole number, not None"),
    ],
)
def test_lists_mappings_and_nothing(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(st.StatetrimError, match=message):
        st.TrimOptions(to=0.5, **changes)


def test_numbers_of_other_libraries_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    options = st.TrimOptions(to=Fraction(1, 3), limit=numpy.int64(3), recall=numpy.float32(0.25))
    assert str(options.request) == "1/3" and as_record(options)["to"] == "1/3"
