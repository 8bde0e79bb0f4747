"""Scripts and recipes that docs/ names and that run too long exist and take their arguments."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helpers.doc_pages import PAGES, ROOT, Command, commands
from helpers.doc_world import WORD_REPLACEMENTS, NotReady, has_all_arguments

PARSE = """
import argparse, json, runpy, sys

class Parsed(Exception): pass

parse = argparse.ArgumentParser.parse_args

def stop(self, *arguments, **named):
    parse(self, *arguments, **named)
    raise Parsed

argparse.ArgumentParser.parse_args = stop
for said, script, *arguments in json.loads(sys.stdin.read()):
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
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, "\n".join(done.stderr.splitlines()[-5:])


def test_every_extra_and_path_that_pip_installs_is_there() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installs = commands_of("pip")
    assert installs
    for command, (verb, *requirements) in installs:
        assert verb == "install", str(command)
        for requirement in requirements:
            if requirement.startswith("./"):
                assert (ROOT / requirement / "pyproject.toml").is_file(), (
                    f"{command}: no such project"
                )
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
