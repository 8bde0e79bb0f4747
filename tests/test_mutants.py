"""A sample of the damaged artifacts that `just mutants` makes."""

import shutil
from pathlib import Path

import pytest

from helpers import mutants

pytestmark = pytest.mark.filterwarnings("ignore")
COUNT, SEED = 60, 7


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mutants.prepare(tmp_path_factory.mktemp("mutants"))


def test_a_damaged_artifact_is_read_or_refused(root: Path) -> None:
    wrong = {name: text for name, text in mutants.mutants(root, COUNT, SEED) if text}
    assert not wrong


def test_the_sound_ones_are_read(root: Path) -> None:
    """Undamaged artifacts are accepted; otherwise the test above would prove nothing."""
    for arguments in {tuple(words) for _, _, readers in mutants.targets(root) for words in readers}:
        code, err, _ = mutants.run(list(arguments))
        assert code is None, err
        for left in root.glob("out*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()
