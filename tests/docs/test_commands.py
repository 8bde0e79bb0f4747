"""Every command and every Python snippet of a page runs on tiny models, or a list says why not."""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers.cases import load_cases
from helpers.doc_pages import PAGES, ROOT, Block, Command, commands, python
from helpers.doc_world import NotReady, World
from statetrim.cut.shape import Axis
from statetrim.maths.units import parse_token_count

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
            # What it starts, for later commands that need its output; --shard needs several.
            words = command.words.partition(" -m ")[2].replace(" --shard", "")
            yield replace(command, text=words)
        elif not any(re.match(pattern, command.words) for pattern in NOT_RUN_PATTERNS):
            yield command


EXAMPLES_IN_CI = ("qwen3.5-27b-fp8-vllm.md", "recover-fsdp-nodes.md")
"""Quantised weights, and a recovery; docs/widths-by-layer.md has widths by layer. Other examples
differ in their model, whose layout tests/pipelines/test_hub_layouts.py cuts: slow tests."""


SLOW = {p for p in PAGES if p.parent.name == "examples" and p.name not in EXAMPLES_IN_CI}
WITH_COMMANDS = [
    pytest.param(page, marks=pytest.mark.slow if page in SLOW else (), id=page.name)
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


@pytest.mark.parametrize(("line", "expected_text"), load_cases("wrong-commands"))
def test_a_wrong_command_is_found(
    line: str, expected_text: str, world: Callable[[Path], World]
) -> None:
    with pytest.raises(NotReady, match=re.escape(expected_text)):
        world(PAGES[0]).run(line)


NOT_EXECUTED = {
    "import fla\n": "needs a GPU, for the kernels of fla",
    "from llmcompressor ": "needs llm-compressor",
}
SNIPPETS = [
    block
    for page in PAGES
    if page.name not in ELSEWHERE
    for block in python(page)
    if not block.text.startswith(tuple(NOT_EXECUTED))
]
_TRIM: dict[str, Any] = {"tokens": 512, "length": 64, "limit": 2, "control": False}
SMALLER: dict[str, dict[str, Any]] = {
    "analyze": {"tokens": 256, "length": 64, "burn_in": 8},
    "calibrate": {"tokens": 256, "length": 64},
    "recover": {"tokens": 512, "length": 64, "batch_size": 4},
    "trim": {**_TRIM, "benchmark": False},
}
"""Sizes that replace those of the page, which are only checked for validity."""


def shown_names() -> dict[str, Any]:
    """Names that the text around a snippet has introduced."""
    return {
        "st": st,
        "model": "MODEL",
        "small": "SMALL",
        "row_indices": st.row_indices,
        "ChannelRows": st.ChannelRows,
        "geometry": st.Geometry((0,), 2, 2, 8, 8, 4, 2, 4),
        "heads": 2,
        "dim": 8,
        "keys": [],
    }


def smaller(function: Callable[..., Any], sizes: dict[str, Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        parse_token_count(named.get("tokens", 0))
        return function(*arguments, **(named | sizes))

    return call


def files(code: ast.AST) -> tuple[set[str], set[str]]:
    """Names of files that a snippet may read, and of those that it writes."""
    texts = {n.value for n in ast.walk(code) if isinstance(n, ast.Constant)}
    calls = [node for node in ast.walk(code) if isinstance(node, ast.Call)]
    written = [word.value for call in calls for word in call.keywords if word.arg == "out"]
    saved = [
        c.args[0] for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr == "save"
    ]
    outputs = {node.value for node in (*written, *saved) if isinstance(node, ast.Constant)}
    return {str(text) for text in texts - outputs}, {str(text) for text in outputs}


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: f"{block.page}:{block.line}")
def test_a_snippet_runs(
    block: Block, world: Callable[[Path], World], monkeypatch: pytest.MonkeyPatch
) -> None:
    if block.page == "add-an-engine.md":
        return  # tests/serving/test_add_an_engine.py adds it to a copy of the package
    if re.search(r"^from \.", block.text, re.MULTILINE):
        body = block.text.strip().partition("\n")[2]
        sources = (path.read_text() for path in (ROOT / "src").rglob("*.py"))
        assert any(body in source for source in sources), f"{block}: no file is like this"
        return
    (page,) = (path for path in PAGES if path.name == block.page)
    page_world = world(page)
    text = block.text
    if re.search(r"^return ", text, re.MULTILINE):
        text = "def shown():\n" + re.sub("^", "    ", text, flags=re.MULTILINE) + "\nshown()"
    code = ast.parse(text)
    read, written = files(code)
    try:
        for name in sorted({*read, "MODEL", "SMALL"} - written):
            page_world.make(name, block.line)
        for name in written:
            page_world.remove(name)
        for name, sizes in SMALLER.items():
            monkeypatch.setattr(st, name, smaller(getattr(st, name), sizes))
        namespace = shown_names()
        exec(compile(code, str(block), "exec"), namespace)
        if "select" in namespace:
            axis: Axis = "value" if '@selects("value")' in text else "key"
            choose(page_world, text, namespace["select"], axis)
    except (st.StatetrimError, NotReady, TypeError, NameError) as error:
        raise AssertionError(f"{block}\n{error}\nMend the page, or tests/docs/") from error


def choose(page_world: World, text: str, method: Any, axis: Axis) -> None:
    """Select half of the channels with the method of the page, calibrated for it if it defines a
    statistic."""
    page_world.make("statistics.safetensors", 0)
    statistics: Any = "statistics.safetensors"
    if "Statistic(" in text:
        method = str(Path("own_statistic.py").absolute())
        Path(method).write_text(text)
        statistics = st.calibrate("MODEL", "text.jsonl", methods=[method])
    to = "64x100%" if axis == "key" else "100%x64"
    plan = st.select("MODEL", method, to, statistics=statistics)
    assert all(kept.shape == (2, 64) for kept in plan.axes[axis].kept.values())
