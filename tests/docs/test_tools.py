"""What the commands of docs/ that are too long to run name is there, and takes their arguments."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from helpers.doc_pages import PAGES, ROOT, Command, commands
from helpers.doc_world import SAYS, NotReady, complete

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


def of(program: str) -> list[tuple[Command, list[str]]]:
    """Commands of a program with their words after it; those that only name it are not here."""
    found = [command for page in PAGES for command in commands(page)]
    words = [(c, shlex.split(c.words)) for c in found if c.words.startswith(f"{program} ")]
    return [(c, [word for word in rest if word != "..."]) for c, (_, *rest) in words]


def recipes() -> dict[str, tuple[int, float]]:
    """How few and how many arguments each recipe of the justfile takes."""
    text = (ROOT / "justfile").read_text(encoding="utf-8")
    found = {}
    for name, rest in re.findall(r"^([\w-]+)((?: [^\n:]+)?):", text, re.MULTILINE):
        names = rest.split()
        least = sum(not re.search(r"^\*|=", one) for one in names)
        found[name] = (least, float("inf") if any(n[0] in "*+" for n in names) else len(names))
    return found


def test_every_recipe_is_there_and_takes_its_arguments() -> None:
    known, found = recipes(), of("just")
    assert len(known) > 20 and len(found) > 10
    for command, (name, *arguments) in found:
        assert name in known, f"{command}: the justfile has no recipe {name!r}"
        least, most = known[name]
        if arguments or not command.in_a_sentence:
            assert least <= len(arguments) <= most, f"{command}: it takes {least} to {most}"


def test_every_script_is_there_and_takes_its_arguments() -> None:
    """In one process, up to the point where each has parsed what it was given."""
    asked = [
        (command, words)
        for command, words in of("python")
        if words[0].startswith(("studies/", "benchmarks/", "tools/"))
    ]
    assert len(asked) > 5
    for command, words in asked:
        assert (ROOT / words[0]).is_file(), f"{command}: there is no such script"
    jobs = [[str(command), *words] for command, words in asked]
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
    found = of("pip")
    assert found
    for command, (verb, *things) in found:
        assert verb == "install", str(command)
        for thing in things:
            if thing.startswith("./"):
                assert (ROOT / thing / "pyproject.toml").is_file(), f"{command}: no such project"
            elif name := re.fullmatch(r"statetrim\[([\w,]+)\]", thing):
                extras = set(name[1].split(","))
                assert extras <= set(project["optional-dependencies"]), f"{command}: no such extra"


def test_torchrun_takes_its_options_and_statetrim_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.distributed.run import get_args_parser

    found = [(command, words) for command, words in of("torchrun") if words]
    assert found
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.jsonl").write_text('{"text": "w1"}\n')
    for command, words in found:
        try:
            options = get_args_parser().parse_args(words)
            assert options.module and options.training_script == "statetrim", str(command)
            done = complete([SAYS.get(word, word) for word in options.training_script_args])
        except (SystemExit, NotReady) as error:
            raise AssertionError(f"{command}\n{error}") from None
        assert done or command.in_a_sentence, f"{command}: something is missing"
