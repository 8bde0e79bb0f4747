"""The public interface is stable: names, parameters, commands and options, with their defaults.

Record an intended change by

    cd tests && python -m helpers.interface python > data/interface/python.txt
    cd tests && python -m helpers.interface command-line > data/interface/command-line.txt
"""

from pathlib import Path

import pytest

from helpers.interface import FACTS

DATA = Path(__file__).parent / "data" / "interface"


@pytest.mark.parametrize("kind", FACTS)
def test_the_interface_is_the_one_written_down(kind: str) -> None:
    written = (DATA / f"{kind}.txt").read_text().splitlines()
    assert FACTS[kind]() == written, "if this is meant, write it down: see the top of this file"
