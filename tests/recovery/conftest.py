"""Tests of recovery show no progress bars."""

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    from transformers.utils import logging

    logging.disable_progress_bar()
    yield
    logging.enable_progress_bar()
