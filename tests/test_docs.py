"""Generated parts of the documentation: error messages on the troubleshooting page, commands and
public names on their reference pages."""

import re
import subprocess
from collections import Counter
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import statetrim
from helpers.modules import load_module

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def hooks() -> Any:
    return load_module(ROOT / "mkdocs_hooks.py")


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def test_every_module_that_raises_is_in_one_section_of_troubleshooting(hooks: Any) -> None:
    raising = {
        str(path.relative_to(hooks.SOURCE).with_suffix(""))
        for path in hooks.SOURCE.rglob("*.py")
        if list(hooks.messages(path))
    }
    listed = " ".join(re.findall(r"<!-- messages: (.*?) -->", page("troubleshooting.md"))).split()
    assert len(listed) == len(set(listed))
    assert set(listed) == raising, "docs/troubleshooting.md: name the module in a section"


def test_reference_pages_are_as_the_source_makes_them() -> None:
    """They are committed, so that they can be read without building the site."""
    reference = load_module(ROOT / "tools" / "write_reference.py")
    for name, kind, content in (
        ("commands.md", "commands", reference.commands()),
        ("api.md", "api", reference.names()),
    ):
        assert page(name) == reference.filled(page(name), kind, content), "run: just interface"
        assert content in page(name)


def test_the_levers_of_released_models_are_those_of_the_arithmetic() -> None:
    tool = load_module(ROOT / "tools" / "write_goals.py")
    page = tool.PAGE.read_text()
    assert page == tool.filled(page), "run: python tools/write_goals.py"
    models = re.findall(r"^\| ([^|]+) \| (?:vLLM|SGLang) \|", page, flags=re.MULTILINE)
    rows = Counter(name for cell in models for name in cell.split(", "))
    assert len(rows) >= 15 and set(rows.values()) == {2}, "at least 15 models, each in two engines"


def test_the_api_page_shows_the_keywords_of_a_function(hooks: Any) -> None:
    """Not `inspect(model, options)`, as its source has it."""
    text = hooks._api()
    for name in ("inspect", "trim", "evaluate"):
        code = re.search(rf"```python\n{name}\((.*?)\n\) -> \w+\n```", text, flags=re.DOTALL)
        assert code is not None
        shown = re.findall(r"^    (\w+)(?:: |,)", code[1], flags=re.MULTILINE)
        assert shown == list(signature(getattr(statetrim, name)).parameters)


def test_blocks_of_code_begin_with_an_indent() -> None:
    """A first line at the margin makes the block a paragraph."""
    for path in (ROOT / "docs").glob("*.md"):
        text = re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        assert not re.search(r"\n\n[a-z][^\n]*\n {4}\S", text), path.name


def test_links_between_pages_lead_somewhere() -> None:
    """Also in the README, which the check of the site's builder does not read."""
    for path in (
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "results").rglob("*.md"),
        *(ROOT / "examples").glob("*.md"),
    ):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"


def test_every_result_has_its_command_date_and_commit() -> None:
    """In the table of results/README.md, where files of one command share a row; a script or recipe
    that a row names must exist, or the row names the last commit that has it:
    `git show COMMIT:PATH`."""
    text = (ROOT / "results" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)`.* \| \d{4}-\d\d-\d\d \| [0-9a-f]{7} \|$", text, re.M)
    assert len(rows) == sum(line.startswith("| `") for line in text.splitlines()), (
        "a row is incomplete"
    )
    names = [name for shared, _ in rows for name in shared.split("`, `")]
    listed = [name for name in names if not name.startswith("tests/data/")]
    existing = {
        path.relative_to(ROOT / "results").as_posix()
        for path in (ROOT / "results").rglob("*")
        if path.is_file() and path.suffix != ".md" and path.parent.name != "upstream"
    }
    assert sorted(listed) == sorted(existing)
    assert all((ROOT / name).is_file() for name in names if name.startswith("tests/data/"))
    recipes = set(re.findall(r"^([\w-]+)[^:=\n]*:", (ROOT / "justfile").read_text(), re.M))
    for _, command in rows:
        program, *words = command.split()
        is_runnable = {
            "just": lambda w: w in recipes,
            "python": lambda w: (ROOT / w).is_file(),
            "git": lambda w: w == "show",
        }
        assert program == "statetrim" or is_runnable[program](words[0]), command


def test_scripts_that_left_the_tree_are_in_the_commit_that_a_page_names() -> None:
    shown = set()
    for page in (ROOT / "results").glob("*.md"):
        shown |= set(re.findall(r"`git show ([0-9a-f]{7}:[^` ]+)`", page.read_text("utf-8")))
    assert len(shown) > 10
    for name in shown:
        if has_object(name.partition(":")[0]):  # a shallow clone or an archive does not
            assert has_object(name), name


def has_object(name: str) -> bool:
    command = ["git", "cat-file", "-e", name]
    return subprocess.run(command, cwd=ROOT, capture_output=True).returncode == 0


def test_the_guides_stay_short() -> None:
    """A reader finds an answer in them; reports are in results/, scripts in examples/."""
    generated = ("commands.md", "api.md")
    pages = [path for path in (ROOT / "docs").glob("*.md") if path.name not in generated]
    words = sum(len(path.read_text(encoding="utf-8").split()) for path in pages)
    assert len(pages) <= 26 and words <= 26_000
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    before_the_links = readme.partition("## Documentation")[0].split()
    assert len([word for word in before_the_links if re.search(r"\w", word)]) <= 700


def test_every_guarantee_names_tests_that_exist() -> None:
    text = (
        (ROOT / "SECURITY.md").read_text(encoding="utf-8").partition("## What is not guaranteed")[0]
    )
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 8
    recipes = (ROOT / "justfile").read_text(encoding="utf-8")
    for guarantee, tests in rows:
        named = re.findall(r"`(tests/[^`]+)`", tests)
        assert named and all(list(ROOT.glob(name)) for name in named), guarantee
        for recipe in re.findall(r"`just ([\w-]+)`", tests):
            assert re.search(rf"^{recipe}\b", recipes, re.M), recipe
