"""The serving commands of a report, and their order."""

import json
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from statetrim.judging.verdict import Outcome, Verdict
from statetrim.reporting.document import Command, Document
from statetrim.reporting.findings import read_findings
from statetrim.reporting.report import build_document
from statetrim.serving.deployment import RunFacts, next_steps
from statetrim.serving.engines import engine_in_matrix, find_engine

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


@pytest.fixture(scope="module")
def cut(tmp_path_factory: Any) -> Path:
    """A cut to 64x64, which most engines serve, of a 128x128 model."""
    folder: Path = tmp_path_factory.mktemp("served")
    wide = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    model = st.open(tiny.build("qwen3_5_text", folder / "model", **wide))
    plan = st.select(model, to="64x64", method="rand")
    st.prune(model, plan, folder / "my cut")
    return folder / "my cut"


def document_of(cut: Path, recipe: Any = None) -> Document:
    record = {"format": "statetrim trim", "version": 1, "statetrim": "0", "recipe": recipe}
    (cut / "statetrim" / "trim.json").write_text(json.dumps(record))
    return build_document(read_findings(st.open(cut)))


def first_command(document: Document) -> tuple[str, str]:
    """The comment and the command on the first screen."""
    (engines,) = (fact for fact in document.summary.facts if fact.name == "Engines")
    comment, command = engines.commands
    return comment, command


def listed_commands(document: Document) -> list[tuple[str, str]]:
    (section,) = (section for section in document.sections if section.title == "Where it runs")
    (block,) = (block for block in section.blocks if isinstance(block, Command))
    return list(zip(block.lines[::2], block.lines[1::2], strict=True))


@pytest.mark.parametrize("requested", ["vllm", "vllm-cpu", "sglang", "transformers", "llama.cpp"])
def test_the_engine_that_was_asked_for_comes_first(cut: Path, requested: str) -> None:
    document = document_of(cut, {"for_": requested})
    engine = find_engine(requested).name
    assert first_command(document) == listed_commands(document)[0]
    assert first_command(document)[0].split(";")[0] == f"# {engine}"
    lines = next(fact.lines for fact in document.summary.facts if fact.name == "Engines")
    assert lines[0].startswith(f"served by {engine}, ")


@pytest.mark.parametrize("recipe", [None, {}, {"for_": None}, {"for_": 7}, {"for_": "<b>"}])
def test_without_an_engine_it_is_the_first_that_serves(cut: Path, recipe: Any) -> None:
    assert first_command(document_of(cut, recipe))[0] == "# vLLM"


def test_an_engine_that_refuses_the_shape_is_not_first(cut: Path) -> None:
    document = document_of(cut, {"for_": "mlx"})  # MLX-LM does not run qwen3_5_text
    assert first_command(document)[0] == "# vLLM"


def test_they_are_those_of_inspect_with_names_flags_and_hints(cut: Path) -> None:
    commands = st.inspect(cut.parent / "model", to="64x64").deployment.commands
    assert "--gdn-prefill-backend" in commands["vLLM"] and "triton" in commands["SGLang"]
    lines = listed_commands(document_of(cut))
    assert len(lines) == len(commands) > 4
    for (comment, line), (engine, command) in zip(lines, commands.items(), strict=True):
        assert line == command.replace("SMALL", f"'{cut}'")
        hint = engine_in_matrix(engine).hint
        hint = f"; {hint}" if hint else ""
        assert comment == f"# {engine}{hint}"


def test_the_next_step_after_ship_serves_it_in_the_engine_that_was_asked_for(cut: Path) -> None:
    verdict = Verdict("cut", Outcome.SHIP, "", [], [])
    facts = RunFacts("MODEL", str(cut), "text.jsonl", "16k", engine="vllm-cpu")
    first, push = next_steps(verdict, st.open(cut.parent / "model"), st.open(cut), facts)
    comment, line = listed_commands(document_of(cut, {"for_": "vllm-cpu"}))[0]
    assert first.command == f"{line}   {comment}" and f"'{cut}'" in line
    assert f" '{cut}' . --private --exclude 'statetrim/*'" in push.command
