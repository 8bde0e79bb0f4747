"""Scripts of examples/ and their pages agree; test_commands.py runs them."""

import re
import shlex
from pathlib import Path

import pytest

from helpers.doc_pages import ROOT, block_commands, script_commands
from helpers.modules import load_module
from statetrim.serving.engines import engine_in_matrix
from statetrim.serving.matrix import Shape, compatibility_of_shape

EXAMPLES = sorted((ROOT / "examples").glob("*.md"))
MODEL_TYPES = {
    "Qwen/Qwen3.5": "qwen3_5",
    "Qwen/Qwen3-Next": "qwen3_next",
    "nvidia/NVIDIA-Nemotron-3": "nemotron_h",
    "allenai/Olmo-Hybrid": "olmo_hybrid",
}
WHOLE_VALUES = {"nemotron_h": 64}
"""Model type -> values of a head where an example keeps all of them."""


def test_there_are_eleven_and_each_is_listed() -> None:
    listed = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert len(EXAMPLES) == 11
    for page in EXAMPLES:
        assert f"](../examples/{page.name})" in listed


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_a_script_has_the_commands_of_its_page(page: Path) -> None:
    assert script_commands(page.with_suffix(".sh")) == block_commands(page)


def test_slurm_files_have_commands_of_their_scripts() -> None:
    files = sorted((ROOT / "examples").glob("*.slurm"))
    scripts = " ".join(" ".join(script_commands(page.with_suffix(".sh"))) for page in EXAMPLES)
    assert len(files) == 2
    for path in files:
        for line in script_commands(path):
            shown = line.removeprefix("srun ").replace('"$FIRST_NODE:29500"', "FIRST_NODE:29500")
            shown = shown.replace("evaluate OUT ", "evaluate OUT RANDOM ")
            assert shown in scripts, f"{path.name}: {line}"


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_the_gain_is_what_inspect_computes(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "| computed for " in text
    tool = load_module(ROOT / "tools" / "write_examples.py")
    assert tool.filled(text) == text, "run: python tools/write_examples.py"


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda page: page.stem)
def test_the_engine_serves_the_shape_with_the_command_shown(page: Path) -> None:
    lines = block_commands(page)
    model = next(word for line in lines for word in shlex.split(line) if "/" in word)
    kind = next((kind for start, kind in MODEL_TYPES.items() if model.startswith(start)), None)
    shapes = {match[1] for line in lines if (match := re.search(r"--to (\S+)", line))}
    if kind is None or any("=" in shape for shape in shapes):
        pytest.skip("no server has the type, or it needs a plugin")
    (shape,) = shapes
    keys, values = shape.split("x")
    width = int(values) if values.isdigit() else WHOLE_VALUES[kind]
    rows = compatibility_of_shape(kind, Shape(int(keys), width))
    served = [
        engine_in_matrix(row.engine).serve_command("OUT", row.flag)
        for row in rows
        if row.current and row.serves
    ]
    starts = ("vllm serve", "python -m sglang", "mlx_lm.server", "llamacpp-env/bin/python")
    (shown,) = (line for line in lines if line.startswith(starts))
    needed = [set(shlex.split(command.partition(" && ")[0])) for command in served]
    assert any(words <= {Path(word).name for word in shlex.split(shown)} for words in needed), (
        shown,
        served,
    )
