"""What tests of recovery share: no progress bars, and tiny models with their cuts."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import statetrim as st

Pair = tuple[st.Checkpoint, st.Checkpoint]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def pair(
    checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Pair]:
    """A function from a model type to a tiny model and its cut to 6 key channels."""
    root = tmp_path_factory.mktemp("pruned")

    def get(model_type: str) -> Pair:
        model, out = st.open(checkpoint(model_type)), root / model_type
        if not out.exists():
            st.prune(model, st.select(model, "l1", "6x100%"), out)
        return model, st.open(out)

    return get
