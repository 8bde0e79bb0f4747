"""Shared fixtures: tiny checkpoints (built once a run) and the reference data, where present."""

import os
from collections.abc import Callable
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

import tiny

torch.set_num_threads(1)  # tests run two at a time


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`checkpoint("qwen3_next")` is the directory of a tiny random model of that type."""
    root = tmp_path_factory.mktemp("tiny")

    def get(model_type: str) -> Path:
        directory = root / model_type
        return directory if directory.exists() else tiny.build(model_type, directory)

    return get
