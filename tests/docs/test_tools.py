"""Scripts and recipes that docs/ names and that run too long exist and take their arguments, and
examples/ agree with their pages; test_commands.py runs them."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helpers.doc_pages import PAGES, ROOT, Command, block_commands, commands, script_commands
from helpers.doc_world import WORD_REPLACEMENTS, NotReady, has_all_arguments
from helpers.modules import load_module
from statetrim.serving.engines import engine_in_matrix
from statetrim.serving.matrix import Shape, compatibility_of_shape

PARSE = """
import argparse, json, runpy, sys

class Parsed(Exception): pass

parse = argparse.ArgumentParser.parse_args

def stop(self, *arguments, **named):
    parse(self, *arguments, **named)
    raise Parsed

argparse.ArgumentParser.parse_args = stop
for said, script, *arguments in json.loads(sys.argv[1]):
    sys.path.insert(0, script.rpartition("/")[0])
    sys.argv = [script, *arguments]
    try:
        runpy.run_path(script, run_name="__main__")
    except Parsed:
        continue
    except SystemExit:
        print(said, file=sys.stderr)
    sys.exit(f"{said}: the script did not take its arguments")
"""


def commands_of(program: str) -> list[tuple[Command, list[str]]]:
    """Commands that start with `program`, and their arguments; bare mentions are left out."""
    uses = []
    for page in PAGES:
        for command in commands(page):
            if command.words.startswith(f"{program} "):
                _, *arguments = shlex.split(command.words)
                uses.append((command, [word for word in arguments if word != "..."]))
    return uses


def recipes() -> dict[str, tuple[int, float]]:
    """Recipe of the justfile -> least and largest number of arguments."""
    text = (ROOT / "justfile").read_text(encoding="utf-8")
    limits = {}
    for name, signature in re.findall(r"^([\w-]+)((?: [^\n:]+)?):", text, re.MULTILINE):
        names = signature.split()
        least = sum(not re.search(r"^\*|=", parameter) for parameter in names)
        limits[name] = (least, float("inf") if any(n[0] in "*+" for n in names) else len(names))
    return limits


def test_every_recipe_is_there_and_takes_its_arguments() -> None:
    limits, uses = recipes(), commands_of("just")
    assert len(limits) > 20 and len(uses) > 10
    for command, (name, *arguments) in uses:
        assert name in limits, f"{command}: the justfile has no recipe {name!r}"
        least, most = limits[name]
        if arguments or not command.inline:
            assert least <= len(arguments) <= most, f"{command}: it takes {least} to {most}"


def test_every_script_is_there_and_takes_its_arguments() -> None:
    """Every script runs in one process until it has parsed its arguments."""
    uses = [
        (command, words)
        for command, words in commands_of("python")
        if words[0].startswith(("studies/", "benchmarks/", "tools/"))
    ]
    assert len(uses) > 5
    for command, words in uses:
        assert (ROOT / words[0]).is_file(), f"{command}: there is no such script"
    jobs = [[str(command), *words] for command, words in uses]
    command = [sys.executable, "-c", PARSE, json.dumps(jobs)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-5:])


def test_every_extra_and_path_that_pip_installs_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installs = commands_of("pip")
    assert installs
    for command, (verb, *requirements) in installs:
        assert verb == "install", str(command)
        for requirement in requirements:
            if requirement.startswith("./"):
                assert (ROOT / requirement / "pyproject.toml").is_file(), f"{command}: no project"
            elif name := re.fullmatch(r"statetrim\[([\w,]+)\]", requirement):
                extras = set(name[1].split(","))
                assert extras <= set(project["optional-dependencies"]), f"{command}: no such extra"


def test_torchrun_takes_its_options_and_statetrim_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.run import get_args_parser

    uses = [(command, words) for command, words in commands_of("torchrun") if words]
    assert uses
    monkeypatch.chdir(tmp_path)
    for name in ("text.jsonl", "test.jsonl"):
        (tmp_path / name).write_text('{"text": "w1"}\n')
    for command, words in uses:
        try:
            options = get_args_parser().parse_args(words)
            assert options.module and options.training_script == "statetrim", str(command)
            done = has_all_arguments(
                [WORD_REPLACEMENTS.get(word, word) for word in options.training_script_args]
            )
        except (SystemExit, NotReady) as error:
            raise AssertionError(f"{command}\n{error}") from None
        assert done or command.inline, f"{command}: something is missing"


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
        engine_in_matrix(row.engine).serve_command("OUT", row.flag) for row in rows if row.serves
    ]
    starts = ("vllm serve", "python -m sglang", "mlx_lm.server", "llamacpp-env/bin/python")
    (shown,) = (line for line in lines if line.startswith(starts))
    needed = [set(shlex.split(command.partition(" && ")[0])) for command in served]
    shown_words = {Path(word).name for word in shlex.split(shown)}
    assert any(words <= shown_words for words in needed), (shown, served)
