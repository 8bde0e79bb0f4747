"""Verification: a stand-in engine is compared with transformers and must show planted faults;
quantised cuts are verified in transformers, as they are stored."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.engine import InProcess, have_ended, wait_until, write_stand_in
from helpers.quantized import FORMATS, quantize_checkpoint
from statetrim.artifacts.verification import Agreement, agreement_table
from statetrim.commands import app
from statetrim.serving.engines import find_engine
from statetrim.verification.drivers.ask_transformers import Engine
from statetrim.verification.engine import DriverRequest, EngineError, run_engine
from statetrim.verification.verify import _engine_faults, _sample_notes

SETTINGS: dict[str, Any] = {"engine": "mlx", "count": 6, "length": 24, "generate": 5}
PLACES = {"texts": 6 * 23, "continuations": 6 * 5}


@pytest.fixture
def pair(pair: Any) -> tuple[Path, ...]:
    return tuple(model.path for model in pair("qwen3_5_text", "8x6", "rand"))


@pytest.fixture
def broken(pair: tuple[Path, ...], tmp_path: Path) -> tuple[Path, ...]:
    shutil.copytree(pair[1], tmp_path / "broken")
    return pair[0], tmp_path / "broken"


@pytest.fixture
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """An engine in this process, with the fault that the test's parameter names."""
    in_process = InProcess(getattr(request, "param", ""))
    monkeypatch.setattr("statetrim.verification.verify.run_engine", in_process)
    return in_process


def verify(pair: tuple[Path, ...], text: Path, **changed: Any) -> st.Verification:
    options = {**SETTINGS, **changed}
    return st.verify(pair[1], baseline=pair[0], text=text, **options)


def check_agreement(verification: st.Verification, dtype: str) -> None:
    assert verification.faults == {} and verification.refusals == {} and verification.notes == {}
    assert [(agreement.model, agreement.kind) for agreement in verification.agreements] == [
        (name, kind) for name in verification.models for kind in ("texts", "continuations")
    ]
    for agreement in verification.agreements:
        assert sum(agreement.places) == PLACES[agreement.kind]
        assert agreement.share() > (0.999 if dtype == "float32" else 0.9)
        assert agreement.different_tokens > 10
        if agreement.kind == "texts":
            assert agreement.largest_difference is not None
            assert agreement.largest_difference < (1e-4 if dtype == "float32" else 0.1)
        assert agreement.share("own") == 1.0 or dtype == "bfloat16"


def test_an_engine_of_another_environment_agrees(
    pair: tuple[Path, ...], text: Path, tmp_path: Path
) -> None:
    python, pids = write_stand_in(tmp_path)
    verification = verify(pair, text, engine_python=python)
    check_agreement(verification, "float32")
    assert (
        verification.version == "mlx-lm 0.1, mlx 0.1, stand-in" and verification.dtype == "float32"
    )
    assert len(list(pids.iterdir())) == 2 and have_ended(pids)


def test_an_engine_that_computes_in_half_precision_agrees(
    engine: InProcess, pair: tuple[Path, ...], text: Path, tmp_path: Path
) -> None:
    verification = verify(pair, text, dtype="bfloat16")
    check_agreement(verification, "bfloat16")
    verification.save(tmp_path / "verification.json")
    assert st.Verification.load(tmp_path / "verification.json") == verification


def test_a_stale_tokenizer_is_found(
    engine: InProcess, broken: tuple[Path, ...], text: Path
) -> None:
    path = broken[1] / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["w5"], vocabulary["w6"] = vocabulary["w6"], vocabulary["w5"]
    path.write_text(json.dumps(tokenizer))
    documents = [json.loads(line)["text"].split() for line in text.read_text().splitlines()[:6]]
    changed = sum("w5" in document or "w6" in document for document in documents)
    assert changed > 2
    verification = verify(broken, text)
    assert verification.faults["broken"] == [
        f"its tokenizer gives other tokens than the original's for {changed} of 6 texts"
    ]
    # sequences are token ids, so only the encodings differ
    assert all(agreement.share() == 1.0 for agreement in verification.agreements)


@pytest.mark.parametrize("engine", ["refuses narrow heads"], indirect=True)
def test_an_engine_that_runs_one_and_not_the_other(
    engine: InProcess, pair: tuple[Path, ...], text: Path
) -> None:
    verification = verify(pair, text)
    assert verification.refusals == {"cut": "ValueError: heads of 12 or more only"}
    assert verification.faults == {
        "cut": ["MLX-LM does not run it: ValueError: heads of 12 or more only"]
    }
    assert {agreement.model for agreement in verification.agreements} == {"qwen3_5_text"}


@pytest.mark.parametrize("engine", ["worse for narrow heads"], indirect=True)
def test_an_engine_that_answers_the_cut_worse(
    engine: InProcess, pair: tuple[Path, ...], text: Path
) -> None:
    verification = verify(pair, text, count=24, length=40)
    texts = verification.find("cut", "texts")
    assert texts is not None and 0.9 < texts.share() < 0.99
    change = verification.agreement_change("cut", "texts")
    assert change is not None and change.high < 0
    assert list(verification.faults) == ["cut"]
    assert "agrees with transformers less than on the original" in verification.faults["cut"][0]


@pytest.mark.parametrize("engine", ["noise"], indirect=True)
def test_an_engine_that_serves_noise(engine: InProcess, pair: tuple[Path, ...], text: Path) -> None:
    """Noise for both models is a fault too, although the cut is no worse than the original."""
    verification = verify(pair, text)
    for name in verification.models:
        assert "chooses as transformers in float32 at only" in verification.faults[name][0]


def make_request(pair: tuple[Path, ...]) -> DriverRequest:
    return DriverRequest(str(pair[1]), "float32", ["w1 w2"], [[1, 2, 3]], [[1, 2]], 1, {})


def test_an_engine_that_hangs_is_ended(pair: tuple[Path, ...], tmp_path: Path) -> None:
    python, pids = write_stand_in(tmp_path, "hangs")
    with pytest.raises(EngineError, match="no answer within 4 seconds"):
        run_engine(find_engine("mlx"), python, make_request(pair), 4.0)
    assert list(pids.iterdir()) and have_ended(pids)


@pytest.mark.parametrize(
    "answer",
    [
        "{",
        "[]",
        '{"engine": "x"}',
        '{"engine": "x", "encoded": null, "choices": [[1]], "log_probabilities": [[0.0]],'
        ' "continuations": [[1]]}',
        '{"engine": "x", "encoded": null, "choices": [["1", 2]], "log_probabilities": [[0.0, 0]],'
        ' "continuations": [[1]]}',
    ],
)
def test_an_answer_that_does_not_fit_is_refused(
    answer: str, pair: tuple[Path, ...], tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat > $3 <<'END'\n{answer}\nEND\n")
    python.chmod(0o755)
    with pytest.raises(EngineError, match="does not fit"):
        run_engine(find_engine("mlx"), python, make_request(pair), 20.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
def test_an_engine_ends_with_the_command_that_started_it(
    number: int, pair: tuple[Path, ...], text: Path, tmp_path: Path
) -> None:
    python, pids = write_stand_in(tmp_path / "engine", "hangs")
    command = [sys.executable, "-m", "statetrim", *arguments(pair, python, text, tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert wait_until(lambda: any(pids.iterdir()))
    process.send_signal(number)
    process.wait(timeout=60)
    assert have_ended(pids)


def arguments(pair: tuple[Path, ...], python: Path, text: Path, folder: Path) -> list[str]:
    words = ["verify", pair[1], "--baseline", pair[0], "--engine", "mlx", "--engine-python", python]
    words += ["--text", text, "--count", 6, "--length", 24, "--generate", 5]
    return [str(word) for word in [*words, "-o", folder / "verification.json"]]


def test_the_command_writes_shows_and_ends_with_1_at_a_fault(
    engine: InProcess, pair: tuple[Path, ...], text: Path, tmp_path: Path
) -> None:
    command = arguments(pair, Path(sys.executable), text, tmp_path)
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "no fault found" in shown.stdout and "138 of 138" in shown.stdout
    again = CliRunner().invoke(app, command)
    assert isinstance(again.exception, st.StatetrimError)  # nothing is overwritten
    engine.mode = "noise"
    failed = CliRunner().invoke(app, [*command[:-1], str(tmp_path / "noisy.json"), "--json"])
    assert failed.exit_code == 1
    assert json.loads(failed.stdout)["faults"]


@pytest.mark.parametrize(("changed", "sentence"), load_cases("verify"))
def test_wrong_arguments_are_told(
    changed: dict[str, Any], sentence: str, pair: tuple[Path, ...], text: Path
) -> None:
    with pytest.raises(st.StatetrimError, match=sentence):
        verify(pair, text, **changed)
    with pytest.raises(st.StatetrimError, match="is given twice"):
        verify((pair[1], pair[1]), text)


def agreement(model: str, agreed: list[int], places: int = 10) -> Agreement:
    all_places = [places] * len(agreed)
    return Agreement(model, "texts", all_places, agreed, agreed, agreed, 0.0, None, 3)


def test_the_change_is_paired_by_sequence() -> None:
    before, after = agreement("a", [10, 8, 9]), agreement("b", [9, 7, 8])
    verification = st.Verification("mlx", "x", "float32", ["a", "b"], [before, after])
    change = verification.agreement_change("b", "texts")
    assert change is not None
    # every sequence loses one position of ten, so the differences have no spread
    assert (change.estimate, change.low, change.high) == pytest.approx((-10.0, -10.0, -10.0))
    unchanged = st.Verification(
        "mlx", "x", "float32", ["a", "b"], [before, agreement("b", [10, 8, 9])]
    )
    change = unchanged.agreement_change("b", "texts")
    assert change is not None and change.estimate == 0.0
    assert change.high == pytest.approx(
        100 * (1 - 0.05 ** (1 / 30))
    )  # exact form of the rule of three
    assert verification.agreement_change("b", "continuations") is None


def test_a_single_sequence_has_no_interval_and_few_positions_are_said() -> None:
    for count, loss, notes in ((1, "+10.00", 1), (9, "+10.00 (+10.00 to +10.00)", 0)):
        before = agreement("a", [10] * count)
        after = replace(agreement("b", [9] * count), own=[10] * count)
        verification = st.Verification("mlx", "x", "float32", ["a", "b"], [before, after])
        assert agreement_table(verification).rows[1][3] == loss
        assert len(list(_sample_notes(verification, "b"))) == notes
        fault, *_ = _engine_faults(verification, "b", "MLX-LM")
        assert fault.endswith(f"100.0 %; {10 * count} positions are few: compare more")


def test_the_judge_counts_a_shared_best_logit_as_agreement() -> None:
    from statetrim.verification.verify import EngineChoices, _agreement, _Reading

    reading = _Reading(torch.tensor([4]), torch.zeros(2, 1), torch.zeros(2, 1))
    agreement = _agreement(
        "m", EngineChoices("texts", [[1, 2]], 1, [[7]], [[-0.5]]), [reading], [reading]
    )
    assert agreement.agreed == [1] and agreement.largest_difference == 0.5


def test_transformers_loads_the_cut_as_it_is_stored(text: Path, tmp_path: Path) -> None:
    """With the plan of the 16-bit sibling, in a process of this environment's Python."""
    sizes = {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
    original = tiny.build("qwen3_5_text", tmp_path / "original", **sizes)
    model = quantize_checkpoint(original, tmp_path / "model", FORMATS["fp8 by row"])
    cut = st.prune(model, st.select(original, "l1,readout_l1", "8x8"), tmp_path / "cut").path
    verification = verify((model, cut), text, engine="transformers", count=4, generate=4)
    assert verification.faults == {} and verification.notes == {}
    assert verification.version.startswith("transformers ")
    for agreement in verification.agreements:
        assert agreement.share() > 0.95
        assert agreement.largest_difference is None or agreement.largest_difference < 0.1


def test_a_format_that_transformers_does_not_know_is_refused_by_its_name(
    pair: tuple[Path, ...], tmp_path: Path
) -> None:
    """It would load the codes as weights."""
    model = quantize_checkpoint(pair[0], tmp_path / "model", FORMATS["modelopt fp8"])
    request = {"model": str(model), "dtype": "float32", "options": {}}
    refusal = pytest.raises(SystemExit, match="transformers cannot load quant_method 'modelopt'")
    with torch.enable_grad(), refusal:  # the driver turns gradients off
        Engine(request)


def test_an_adapter_next_to_the_weights_is_refused_before_the_engine_starts(
    broken: tuple[Path, ...], text: Path
) -> None:
    (broken[1] / "adapter_config.json").write_text("{}")
    with pytest.raises(st.StatetrimError, match=r"adapter_config\.json"):
        verify(broken, text, engine="transformers", engine_python="nowhere")
