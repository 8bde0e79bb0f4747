"""The demo's commands, which `story.txt` lists: cut a model four ways, and measure all of them."""

import shlex
from collections.abc import Callable
from contextlib import chdir
from importlib.resources import files
from pathlib import Path

from ...storage.output import check_absent, file_digest, open_output
from ...version import __version__
from ..stage import Observer, Stage
from .material import write_model, write_text

ORIGINAL, RANDOM = "MODEL", "RANDOM"


def scenes(seed: int = 0) -> dict[str, list[str]]:
    """Title -> its commands in order, without `statetrim`; `seed` draws recall sequences and random
    channels. The last scene is only proposed. Its recovery reads the text up to where the others
    measure."""
    commands, title = dict[str, list[str]](), ""
    for line in (files(__package__) / "story.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith(" "):
            commands[title].append(line.strip().format(seed=seed))
        else:
            title = line
            commands[title] = []
    return commands


def run(
    out: Path,
    run_command: Callable[[list[str]], None],
    on_step: Callable[[str], None],
    seed: int = 0,
) -> None:
    """Run the demo into `out`, which appears when everything is done; an interrupted demo resumes.
    `run_command` gets the words of a statetrim command, `on_step` a line on what happens next."""
    check_absent(out)
    record = {"format": "statetrim demo", "statetrim": __version__, "seed": seed}
    with open_output(out, "demo.json", record) as output_dir:
        with chdir(output_dir.path):
            write_text(Path("text.jsonl"), seed)
            material = record | {"text": file_digest(Path("text.jsonl"))}
            last = Stage(Path(ORIGINAL), material, lambda _: write_model(Path(ORIGINAL)))
            last.ensure(Observer())
            *all_scenes, _ = scenes(seed).items()
            for number, (title, commands) in enumerate(all_scenes, start=1):
                on_step(f"{number}/{len(all_scenes)} {title}")
                for words in map(shlex.split, commands):
                    if "-o" not in words:
                        run_command(words)
                        continue
                    last = _command_stage(words, last, run_command)
                    last.ensure(Observer())
        output_dir.publish()


def _command_stage(
    words: list[str], before: Stage, run_command: Callable[[list[str]], None]
) -> Stage:
    """The output of a command, which may read those of all commands before it."""
    output = Path(words[words.index("-o") + 1])
    return Stage(output, {"command": words}, lambda _: run_command(words), [before])
