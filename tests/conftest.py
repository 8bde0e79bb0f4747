"""Shared fixtures: tiny checkpoints, built once per run, and processes that run commands."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
# Set before numpy and torch are imported: matrices in tests are small, and threads that wait for
# each other on a busy machine make the suite several times slower.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import pytest  # noqa: E402

import statetrim as st  # noqa: E402
from helpers import tiny  # noqa: E402
from helpers.forker import Forker, exclude_from_collection, modules  # noqa: E402
from helpers.fresh_install import fresh  # noqa: E402, F401
from helpers.modules import load_module  # noqa: E402
from helpers.tiny import Load  # noqa: E402
from helpers.untrusted import little_memory, scratch, sound  # noqa: E402, F401


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """`checkpoint("qwen3_next")` is the directory of a tiny random model of that type."""
    root = tmp_path_factory.mktemp("tiny")

    def get(model_type: str) -> Path:
        directory = root / model_type
        return directory if directory.exists() else tiny.build(model_type, directory)

    return get


@pytest.fixture(scope="session")
def pair(
    checkpoint: Load, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., tuple[st.Checkpoint, st.Checkpoint]]:
    """`pair("qwen3_next")` is a tiny model and its cut, named so; only to be read."""
    root = tmp_path_factory.mktemp("pairs")

    def get(model_type: str, to: str = "6x100%", method: str = "l1") -> Any:
        model, out = st.open(checkpoint(model_type)), root / f"{model_type} {to} {method}" / "cut"
        if not out.exists():
            st.prune(model, st.select(model, method, to), out, progress=False)
        return model, st.open(out)

    return get


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A .jsonl of 16,384 random words; only to be read."""
    return tiny.write_text(tmp_path_factory.mktemp("text") / "text.jsonl", 2**14)


@pytest.fixture
def screenshots() -> Any:
    """tools/screenshots.py, where there is a browser."""
    pytest.importorskip("axe_playwright_python")
    tool = load_module(Path(__file__).parents[1] / "tools" / "screenshots.py")
    if tool.chromium() is None:
        pytest.skip("needs chromium")
    return tool


@pytest.fixture
def own_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads the tiny tokenizer as it is: for some types transformers takes another class."""
    from transformers import PreTrainedTokenizerFast

    for stage in ("runtime.corpus", "evaluation.evaluate"):
        monkeypatch.setattr(
            f"statetrim.{stage}.load_tokenizer",
            lambda model: PreTrainedTokenizerFast.from_pretrained(model.path),
        )


@pytest.fixture
def quick_sensitivity(monkeypatch: pytest.MonkeyPatch) -> None:
    """`analyze --sensitivity` measures on few samples; the command line cannot say how many."""
    from statetrim.pipelines.sensitivity import sensitivity

    run = sensitivity.run
    few: dict[str, Any] = {"calibration_tokens": 1024, "windows": 2, "rows": 2}
    monkeypatch.setattr(
        sensitivity, "run", lambda model, options: run(model, replace(options, **few))
    )


@pytest.fixture(scope="session")
def forker() -> Iterator[Forker]:
    """Runs commands in child processes with few imports, so that their memory can be measured."""
    with closing(Forker()) as forker:
        yield forker


@pytest.fixture(scope="session")
def warm_forker() -> Iterator[Forker]:
    """Runs commands in child processes with all imports done: less than a second per command."""
    with closing(Forker(*modules())) as forker:
        yield forker


@pytest.fixture(scope="session")
def fla_forker() -> Iterator[Forker]:
    """Runs scripts in child processes that have imported fla, after which transformers would pass
    CPU tensors to fla's GPU kernels."""
    with closing(Forker("fla.models")) as forker:
        yield forker


LONGEST = (
    "test_readme.py", "test_adversary.py", "test_commands.py", "test_recover.py", "test_trim.py",
    "test_devices.py", "test_first_screen.py", "test_mutants.py", "test_shape_choice.py",
    "test_python.py", "test_verify.py", "test_notebook.py",
)  # fmt: skip
"""Files that take longest; they run first, or the other worker would be idle at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (*LONGEST, item.path.name).index(item.path.name))


def pytest_collection_finish() -> None:
    """Garbage collection of all that is imported took a tenth of the run."""
    exclude_from_collection()
    gc.set_threshold(50_000, 20, 100)


def pytest_unconfigure() -> None:
    """At exit, triton lists all objects that are excluded from collection as leaked."""
    gc.unfreeze()
