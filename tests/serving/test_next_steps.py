"""What a verdict proposes, and that the proposed commands work."""

import shlex
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from helpers.refusal import run
from statetrim.judging.verdict import Outcome, Verdict
from statetrim.serving.deployment import MAX_STEPS, NextStep, RunFacts, next_steps

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths
QUICK = {
    "trim": ["--dry-run", "--length", "64"],
    "recover": ["--length", "64", "--batch-size", "4"],
    "evaluate": ["--limit", "2"],
}
"""Options added to the commands, whose defaults suit real models."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    """A model with two value heads for each key head, a cut of half of its keys, and a text."""
    folder: Path = tmp_path_factory.mktemp("next")
    model = st.open(tiny.build("qwen3_5_text", folder / "model"))
    st.prune(model, st.select(model, to="50%x100%", method="rand"), folder / "OUT")
    tiny.write_text(folder / "text.jsonl", 2**16)
    return folder


def steps_after(folder: Path, outcome: Outcome, worst: str = "", **facts: Any) -> list[NextStep]:
    verdict = Verdict("OUT", outcome, "because", [], [], worst)
    run_facts = RunFacts("model", "OUT", "text.jsonl", "1k", samples=2, **facts)
    return next_steps(verdict, st.open(folder / "model"), st.open(folder / "OUT"), run_facts)


def test_a_loss_is_met_by_other_cuts_first(folder: Path) -> None:
    by_layer, heads, larger = steps_after(folder, Outcome.STOP, "recall")
    assert "--to 0.5 --by-layer " in by_layer.command and "plugin" in by_layer.reason
    assert "heads --text" in heads.command and "remove heads" in heads.reason
    assert "--to 0.75 " in larger.command
    tried = steps_after(folder, Outcome.STOP, "recall", tried_by_layer=True)
    assert not any("--by-layer" in step.command for step in tried)
    assert tried[-1].command.startswith("statetrim recover OUT --teacher model")
    for_sglang = steps_after(folder, Outcome.STOP, engine="sglang")
    assert not any("--by-layer" in step.command for step in for_sglang), "it serves none"


def test_samples_do_not_help_a_cut_that_is_as_good_as_random_ones(folder: Path) -> None:
    def commands(worst: str) -> list[str]:
        verdict = Verdict("OUT", Outcome.UNKNOWN, "because", [], [], worst, as_random=True)
        facts = RunFacts("model", "OUT", "text.jsonl", "1k", samples=2)
        steps = next_steps(verdict, st.open(folder / "model"), st.open(folder / "OUT"), facts)
        return [step.command for step in steps]

    by_layer, heads, larger = commands("recall")
    assert "--by-layer" in by_layer and "heads --text" in heads and "--to 0.75 " in larger
    assert ["--to 0.25 " in command for command in commands("")] == [True], "cut further"


def test_a_flag_for_16_bits_leaves_half_of_the_share(folder: Path) -> None:
    by_layer, _, larger = steps_after(
        folder, Outcome.STOP, "recall", engine="vllm", flag_dtype="bfloat16"
    )
    assert "--to 0.25 --by-layer " in by_layer.command and "--for vllm" in by_layer.command
    assert "--to 0.375 " in larger.command and "75%" in larger.reason


def test_after_a_cut_of_heads_come_widths_by_layer(folder: Path) -> None:
    model = st.open(folder / "model")
    heads = st.prune(model, st.select(model, to="2heads", method="rand"), folder / "HEADS")
    verdict = Verdict("HEADS", Outcome.STOP, "because", [], [], "recall")
    facts = RunFacts("model", "HEADS", "text.jsonl", "1k", samples=2)
    by_layer, larger, _ = next_steps(verdict, model, heads, facts)
    assert "--to 0.5 --by-layer " in by_layer.command and "--to 0.75 " in larger.command


def test_recovery_trains_recall_where_recall_was_lost(folder: Path) -> None:
    recall = steps_after(folder, Outcome.RECOVER, "recall")
    assert [shlex.split(step.command)[1] for step in recall] == ["recover", "evaluate", "trim"]
    assert "--recall 0.25 --whole" in recall[0].command
    assert "--recall" not in steps_after(folder, Outcome.RECOVER, "perplexity")[0].command


@pytest.mark.parametrize("outcome", list(Outcome))
def test_at_most_three_commands_and_serving_only_what_ships(folder: Path, outcome: Outcome) -> None:
    steps = steps_after(folder, outcome)
    assert 2 <= len(steps) <= MAX_STEPS
    serves = any("serve" in step.command or "hf upload" in step.command for step in steps)
    assert serves == (outcome is Outcome.SHIP)


@pytest.mark.parametrize("outcome", [Outcome.RECOVER, Outcome.STOP, Outcome.UNKNOWN])
def test_the_commands_work(folder: Path, outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for step in steps_after(folder, outcome, "recall"):
        name, *arguments = shlex.split(step.command)[1:]
        code, err, _ = run([name, *arguments, *QUICK[name]])
        assert code is None, f"{step.command}\n{err}"
