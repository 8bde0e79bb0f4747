"""The demo's model and text; tests/test_readme.py runs the demo from the wheel."""

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

import statetrim as st
from statetrim.pipelines.demo.material import write_model, write_text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "MODEL"
    write_model(path)
    return path


def paragraphs(path: Path) -> list[str]:
    documents = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    return [text for document in documents for text in document.split("\n\n")]


def test_the_model_has_the_layout_that_engines_know(model: Path) -> None:
    opened = st.open(model)
    assert opened.config["model_type"] == "qwen3_5"
    geometry = opened.geometry
    assert geometry.layers == (0, 1) and geometry.shape == "64 x 64"
    assert (geometry.num_k_heads, geometry.num_v_heads) == (2, 4)
    assert sum(path.stat().st_size for path in model.iterdir()) < 2**21


def test_every_token_has_an_embedding(model: Path) -> None:
    """transformers adds the tokens that it expects of a model type, llama.cpp refuses more."""
    vocabulary = AutoTokenizer.from_pretrained(model).get_vocab()
    size = st.open(model).config["text_config"]["vocab_size"]
    assert sorted(vocabulary.values()) == list(range(size))


def test_no_paragraph_comes_twice(tmp_path: Path) -> None:
    write_text(tmp_path / "first.jsonl", seed=101)
    write_text(tmp_path / "second.jsonl", seed=102)
    first, second = paragraphs(tmp_path / "first.jsonl"), paragraphs(tmp_path / "second.jsonl")
    assert len(first) == len(set(first))
    assert first != second and sorted(first) == sorted(second)
    assert sum(map(len, first)) > 320_000
