"""Every command of a page runs on tiny models, or `NOT_RUN` lists it with the reason."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.cases import load_cases
from helpers.doc_pages import PAGES, Command, commands
from helpers.doc_world import NotReady, World

ELSEWHERE = {
    "quickstart.md": "tests/test_readme.py runs it, from the built wheel",
    "commands.md": "is made from the help, and shows no values",
}
HELP = (
    "\nMend the page. If the command is right and needs a file or a size that is missing here, add "
    "it to tests/helpers/doc_world.py; if it cannot run at all, to NOT_RUN, with the reason."
)
NOT_RUN = load_cases("not-run")
"""Start of a command, where ... is any text -> why the tests do not run it."""
NOT_RUN_PATTERNS = [re.escape(start).replace(r"\.\.\.\ ", ".*") for start in NOT_RUN]


def shown_commands() -> list[Command]:
    """All commands of docs/, except mere names of tools such as `torchrun`, `statetrim prune`."""
    all_commands = [command for page in PAGES for command in commands(page)]
    return [
        c for c in all_commands if not (c.inline and re.fullmatch(r"\S+|statetrim [a-z]+", c.words))
    ]


def is_exception(command: Command) -> bool:
    return any(re.match(pattern, command.words) for pattern in NOT_RUN_PATTERNS)


def test_every_exception_occurs() -> None:
    words = [command.words for command in shown_commands()]
    unused = [p for p in NOT_RUN_PATTERNS if not any(re.match(p, text) for text in words)]
    assert not unused, "no page shows these; remove them from NOT_RUN"


def commands_to_run(page: Path) -> Iterator[Command]:
    if page.name in ELSEWHERE:
        return
    for command in shown_commands():
        if command.page != page.name:
            continue
        if page.parent.name == "examples" and command.words.startswith("torchrun"):
            yield in_one_process(command)
        elif not is_exception(command):
            yield command


def in_one_process(command: Command) -> Command:
    """What torchrun starts, for later commands that need its output; `--shard` needs several."""
    words = command.words.partition(" -m ")[2].replace(" --shard", "")
    return replace(command, text=words)


EXAMPLES_IN_CI = ("qwen3.5-27b-fp8-vllm.md", "recover-fsdp-nodes.md")
"""Quantised weights, and a recovery; docs/widths-by-layer.md has widths by layer. Other examples
differ in their model, whose layout tests/pipelines/test_hub_layouts.py cuts: slow tests."""


def is_slow(page: Path) -> bool:
    return page.parent.name == "examples" and page.name not in EXAMPLES_IN_CI


WITH_COMMANDS = [
    pytest.param(page, marks=pytest.mark.slow if is_slow(page) else (), id=page.name)
    for page in PAGES
    if any(commands_to_run(page))
]


@pytest.mark.filterwarnings("ignore")  # of transformers and huggingface_hub
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_run(page: Path, world: Callable[[Path], World]) -> None:
    page_world = world(page)
    for command in commands_to_run(page):
        try:
            page_world.run(command.words, command.line, command.inline)
        except NotReady as error:
            raise AssertionError(f"{command}\n{error}{HELP}") from None


@pytest.mark.parametrize(
    ("line", "expected_text"),
    [
        ("statetrim inspect MODEL --to manyx100%", "many"),
        (
            "statetrim select MODEL --to 64x100% --statistics statistic.safetensors -o p",
            "statistic.s",
        ),
        ("statetrim trim MODEL --to 64x100%", "lacks an argument"),
        ("statetrim inspect MODEL && rm MODEL", "a line of its own"),
        ("llama-server -m OUT", "nothing here runs 'llama-server'"),
    ],
)
def test_a_wrong_command_is_found(
    line: str, expected_text: str, world: Callable[[Path], World]
) -> None:
    with pytest.raises(NotReady, match=re.escape(expected_text)):
        world(PAGES[0]).run(line)
