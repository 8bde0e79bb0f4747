"""A corpus tokenizes its text once, and what is read from one slice is in no other."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

import statetrim as st
from helpers.tiny import Load
from statetrim.artifacts.steps import read_seen_texts
from statetrim.pipelines.job import Job
from statetrim.pipelines.options import TrimOptions
from statetrim.runtime.corpus import Corpus, _Tokens

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


@pytest.fixture
def tokenized(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The documents that are tokenized, in order."""
    seen: list[str] = []
    stock_encode = _Tokens._encode

    def encode(tokens: _Tokens, document: str) -> Any:
        seen.append(document)
        return stock_encode(tokens, document)

    monkeypatch.setattr(_Tokens, "_encode", encode)
    return seen


def test_slices_are_the_tokens_of_transformers_in_order(
    checkpoint: Load, text: Path, tokenized: list[str]
) -> None:
    path = checkpoint("delta_net")
    tokenizer = AutoTokenizer.from_pretrained(path)
    corpus = Corpus(text, st.open(path))
    first, second, empty, last = corpus.divide(1000, 600, 0, 400)
    assert [second.start, empty.start, last.start, last.stop] == [1000, 1600, 1600, 2000]
    assert not tokenized, "nothing is read before it is needed"
    ids = last.read(tokens=400, length=20).ids
    joined: list[int] = []
    for document in tokenized:
        joined += tokenizer(document, add_special_tokens=False)["input_ids"]
        joined += [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    assert ids.flatten().tolist() == joined[1600:2000]
    assert second.read(tokens=20, length=20, skip=40).ids.flatten().tolist() == joined[1040:1060]
    assert corpus.read(tokens=20, length=20).ids.flatten().tolist() == joined[:20]
    assert len(tokenized) == len({*tokenized}), "every document is tokenized once"
    for part, skip, tokens in ((first, 0, 1020), (second, 590, 20), (empty, 0, 20)):
        with pytest.raises(st.StatetrimError, match=str(skip + tokens)):
            part.read(tokens=tokens, length=20, skip=skip)


@pytest.mark.parametrize("options", [{}, {"method": "l1,readout_l1", "refit": False}])
def test_no_step_of_a_run_reads_what_another_reads(
    checkpoint: Load, text: Path, options: dict[str, Any]
) -> None:
    sizes: dict[str, Any] = {"tokens": 4096, "limit": 4, "recover": 2048, "to": 0.5}
    job = Job.from_options(
        st.open(checkpoint("qwen3_5_text")), TrimOptions(text=text, **sizes, **options)
    )
    slices = job.slices
    parts = [slices.calibration, slices.choice, slices.evaluation, slices.recovery]
    assert [part.start for part in parts] == [0, 4096, 6144, 8192]
    assert slices.recovery.stop == job.text_end == 10240


def test_a_run_tokenizes_each_document_once(
    checkpoint: Load, text: Path, tmp_path: Path, tokenized: list[str]
) -> None:
    small = st.trim(
        checkpoint("qwen3_5_text"), to=0.5, text=text, out=tmp_path / "small", tokens=1024,
        limit=2, batch_size=2, recover=1024, length=64, control=False,
    )  # fmt: skip
    assert tokenized and len(tokenized) == len({*tokenized})
    assert 1024 + 1024 + 1024 in [source.skip for source, _ in read_seen_texts(small)], "recovery"
