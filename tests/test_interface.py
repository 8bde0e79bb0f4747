"""What users type stays: every public name, parameter, command and option, with its default.

A change shows here first. What is meant is written down by

    cd tests && python -m helpers.interface python > data/interface/python.txt
    cd tests && python -m helpers.interface command-line > data/interface/command-line.txt
"""

from pathlib import Path

import pytest

from helpers.interface import FACTS

DATA = Path(__file__).parent / "data" / "interface"

CHANGED: dict[str, str] = {
    f"{name}(*, progress=<function>)": "a bar by default; a function is told a Progress"
    for name in (
        *("analyze", "benchmark", "calibrate", "evaluate", "prune", "recover", "refit", "select"),
    )
} | dict.fromkeys(
    (
        "calibrate(*, methods=('drrqr',))",
        *("select(method='l1')", "select(*, value_method='readout_l1')"),
        *("select --method='l1'", "select --value-method='readout_l1'", "trim --method='drrqr'"),
    ),
    "one default in all commands, decided by measurement",
)
"""Facts of 0.1 that no longer hold, each with its reason."""


def without_type(fact: str) -> str:
    """A type may become wider; names, order and defaults stay."""
    return fact.partition(": ")[0]


def name(fact: str) -> str:
    return fact.partition("=")[0]


@pytest.mark.parametrize("kind", FACTS)
def test_the_interface_is_the_one_written_down(kind: str) -> None:
    written = (DATA / f"{kind}.txt").read_text().splitlines()
    assert FACTS[kind]() == written, "if this is meant, write it down: see the top of this file"


@pytest.mark.parametrize("kind", FACTS)
def test_everything_of_the_first_version_still_works(kind: str) -> None:
    old = [without_type(fact) for fact in (DATA / f"{kind}-0.1.txt").read_text().splitlines()]
    new = [without_type(fact) for fact in FACTS[kind]()]
    missing = set(old) - set(new)
    assert missing == {fact for fact in CHANGED if fact in old}
    for owner in {fact.partition("(")[0] for fact in old}:
        positional = [
            [name(fact) for fact in facts if fact.startswith(f"{owner}(") and "*" not in fact]
            for facts in (old, new)
        ]
        assert positional[1][: len(positional[0])] == positional[0], (
            f"{owner}: another order of arguments"
        )
