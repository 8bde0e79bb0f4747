"""The option classes of `trim` and `recover`: the command line fills them, Python accepts an
instance or keyword arguments, and records store them."""

import dataclasses
import json
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import statetrim as st
from statetrim.cli import app
from statetrim.maths.units import parse_token_count
from statetrim.pipelines.job import Job
from statetrim.pipelines.options import TrimFields
from statetrim.recovery.options import RecoverFields

ROOT = Path(__file__).parents[1]
KINDS = [(st.TrimOptions, TrimFields), (st.RecoverOptions, RecoverFields)]


@pytest.mark.parametrize(("options", "names"), KINDS)
def test_the_names_given_one_by_one_are_those_of_the_class(options: type, names: type) -> None:
    assert typing.get_type_hints(options) == typing.get_type_hints(names)
    assert list(typing.get_type_hints(names)) == [f.name for f in dataclasses.fields(options)]


@pytest.mark.parametrize(("options", "_"), KINDS)
def test_a_number_of_tokens_that_is_none_is_refused_at_once(options: Any, _: type) -> None:
    with pytest.raises(st.StatetrimError, match="'many' is not a number of tokens"):
        options(tokens="many")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: st.trim("M", out="o", kepe=3), "'kepe'; did you mean 'keep'"),
        (lambda: st.trim("M", out="o", state_mib_per=3), "did you mean 'state_mib_per_sequence'"),
        (lambda: st.sweep("M", ["6"], out="o", task=()), "sweep has no option 'task'"),
        (lambda: st.recover("M", text="t", out="o", ranks=3), "recover has no option 'ranks'"),
        (lambda: st.recover("M", text="t", out="o", zzz=3), "it has: tokens, length, skip, rank"),
    ],
)
def test_a_mistyped_option_is_named_with_the_nearest(call: Any, message: str) -> None:
    with pytest.raises(st.StatetrimError, match=message):
        call()


def test_what_is_given_by_name_counts_over_the_options(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    jobs: list[Job] = []
    monkeypatch.setattr("statetrim.pipelines.trim.run", lambda job, out, watch: jobs.append(job))
    options = st.TrimOptions(keep=6, tokens="1k", seed=3)
    st.trim(checkpoint("qwen3_5_text"), options, out=tmp_path / "out", tokens=2048)
    assert jobs[0].options == dataclasses.replace(options, tokens=2048)
    assert (jobs[0].tokens, jobs[0].after.head_k_dim) == (2048, 6)


def test_an_estimate_is_the_dry_run(checkpoint: Any, text: Path, tmp_path: Path) -> None:
    model = checkpoint("qwen3_5_text")
    steps = st.estimate(model, keep=6, text=text, tokens="1k", recover="1k", benchmark=False)
    words = ["trim", str(model), "--keep", "6", "--text", str(text), "--tokens", "1k"]
    words += ["--recover", "1k", "--no-benchmark", "--dry-run", "--json", "-o", str(tmp_path / "o")]
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


def flags(command: str) -> Iterator[tuple[str, Any]]:
    """Every option of a command, with its name in Python."""
    group: Any = typer.main.get_command(app)
    for parameter in group.commands[command].params:
        if parameter.param_type_name == "option":
            long = next(opt for opt in parameter.opts if opt.startswith("--"))
            name = long.removeprefix("--").removeprefix("no-").replace("-", "_")
            yield {"for": "for_", "json": "as_json"}.get(name, name), parameter


NOT_OPTIONS = {
    "trim": {"output", "sweep", "recipe", "dry_run", "family", "as_json"},
    "recover": {"output", "text", "teacher", "family", "as_json"},
}
NOT_ON_THE_COMMAND_LINE = {
    "trim": set(),
    "recover": {"last_learning_rate", "warm_up"},
}


@pytest.mark.parametrize(
    ("command", "options"), [("trim", st.TrimOptions), ("recover", st.RecoverOptions)]
)
def test_the_command_line_has_the_same_names(command: str, options: Any) -> None:
    names = {name for name, _ in flags(command)} - NOT_OPTIONS[command]
    fields = {field.name for field in dataclasses.fields(options)}
    assert names == fields - NOT_ON_THE_COMMAND_LINE[command]


def test_the_command_line_has_the_same_defaults(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, out = str(checkpoint("qwen3_5_text")), str(tmp_path / "out")
    options = filled(
        monkeypatch, "statetrim.pipelines.job.Job.from_options", ["trim", model, "-o", out]
    )
    assert plain(options) == plain(st.TrimOptions())
    words = ["recover", model, "--text", "t", "-o", out]
    options = filled(monkeypatch, "statetrim.recovery.recover.recover", words)
    assert plain(options) == plain(st.RecoverOptions())


def test_the_command_line_fills_every_option(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model, out = str(checkpoint("qwen3_5_text")), str(tmp_path / "out")
    words = "--state 0.5 --keep 1 --keep-values 2 --square 3 --state-mib-per-sequence 4"
    words += " --sequences 5 --memory-gib 6 --for vllm --text t --tokens 7 --method l1"
    words += " --value-method readout_l1 --refit --recall 0.3 --random 0.2"
    words += " --recover 8 --tasks mqar,squad --data d --limit 9 --batch-size 10 --no-control"
    words += " --no-benchmark --layerwise --length 11 --seed 12 --device cpu --device-map auto"
    words += " --max-memory 0=1GiB --dtype bfloat16 --widths 0=1x1 --keep-heads 2"
    words += " --state-dtype int8"
    arguments = ["trim", model, "-o", out, *words.split()]
    options = filled(monkeypatch, "statetrim.pipelines.job.Job.from_options", arguments)
    untouched = NOT_ON_THE_COMMAND_LINE["trim"]
    defaults = plain(st.TrimOptions())
    unchanged = {name for name, value in plain(options).items() if value == defaults[name]}
    assert unchanged == untouched and (options.for_, options.sequences) == ("vllm", 5)

    words = "--tokens 1 --length 2 --skip 3 --batch-size 4 --micro-batch 5 --rank 6 --alpha 7"
    words += " --learning-rate 8 --temperature 9 --also mlp --mixed-precision --control --shard"
    words += " --gradient-checkpointing --layerwise --seed 10 --save-every 11 --report-to x"
    words += " --device cpu --dtype bfloat16 --recall 0.5 --patience 2 --layers 0 --whole"
    arguments = ["recover", model, "--text", "t", "-o", out, *words.split()]
    options = filled(monkeypatch, "statetrim.recovery.recover.recover", arguments)
    defaults = plain(st.RecoverOptions())
    unchanged = {name for name, value in plain(options).items() if value == defaults[name]}
    assert unchanged == NOT_ON_THE_COMMAND_LINE["recover"]


@pytest.mark.parametrize(
    ("requested", "keep", "keep_values"),
    [
        ({"keep": "0.5"}, "0.5", None),
        ({"keep": 6, "keep_values": 0.5}, 6, 0.5),
        ({"square": "4"}, "4", "4"),
        ({"state_mib_per_sequence": 0.002}, 2, None),
        ({"for_": "transformers", "keep": 6}, 6, None),
    ],
)
def test_the_record_of_a_job_is_that_of_version_0_1(
    requested: dict[str, Any], keep: Any, keep_values: Any, checkpoint: Any, tmp_path: Path
) -> None:
    """Results and interrupted runs of 0.1 are recognised, whichever options requested the shape."""
    model = st.open(checkpoint("qwen3_5_text"))
    common = {"text": tmp_path / "none.txt", "tokens": "1k", "method": "drrqr", "recall": 0.0}
    job = Job.from_options(model, st.TrimOptions(**requested, **common))
    assert list(job.record.items()) == list({
        "format": "statetrim trim", "version": 1, "statetrim": st.__version__,
        "source": model.digest, "weights": model.fingerprint, "keep": keep,
        "keep_values": keep_values, "text": str(tmp_path / "none.txt"), "tokens": 1024,
        "length": 512, "batch_size": 8, "method": "drrqr", "value_method": "readout_greedy",
        "refit": None, "recover": 0, "tasks": ["text", "mqar"], "data": None, "limit": 32,
        "control": True, "benchmark": True, "seed": 0, "layerwise": None, "text_stamp": [],
    }.items())  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # transformers warns about its slow paths
def test_results_say_with_which_options_they_were_made(
    checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    options = st.TrimOptions(
        square=4, text=str(text), tokens="1k", recover="1k", length=64, tasks=["text"], limit=2,
        control=False, benchmark=False,
    )  # fmt: skip
    small = st.trim(checkpoint("qwen3_5_text"), options, out=tmp_path / "out")
    record = json.loads((small.path / "statetrim" / "trim.json").read_text())
    assert st.TrimOptions(**record["recipe"]) == options
    assert (record["keep"], record["keep_values"], record["tokens"]) == ("4", "4", 1024)
    record = json.loads((small.path / "statetrim" / "recover.json").read_text())
    assert record["options"] == {
        "rank": 16, "alpha": 32, "learning_rate": 1e-4, "last_learning_rate": 1e-5,
        "warm_up": 0.05, "batch_size": 16, "temperature": 2.0, "also": [],
        "mixed_precision": False, "layerwise": False, "seed": 0,
    }  # fmt: skip
    recovered = st.RecoverOptions(**record["recipe"])
    assert (recovered.tokens, recovered.length, recovered.batch_size) == (1024, 64, 16)
