"""The training script learns recall, resumes interrupted runs, and writes fla checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from helpers.forker import Forker
from helpers.modules import load_module
from statetrim import portable

STUDIES = Path(__file__).parents[2] / "studies"
mqar = load_module(STUDIES / "mqar.py")
train_tiny = load_module(STUDIES / "train_tiny.py")
QUICK = ("--preset", "fixture", "--set", "steps=6", "--set", "recall_tokens=64")


def train(forker: Forker, kind: str, out: Path, *options: str) -> str:
    """Run studies/train_tiny.py with one thread; returns its standard output."""
    words = [str(STUDIES / "train_tiny.py"), kind, str(out), "--threads", "1", *options]
    ended = forker.run(words, script=True)
    assert ended["code"] == 0, ended["err"]
    return str(ended["out"])


@pytest.mark.slow
def test_fixture_recalls_sixteen_pairs(tmp_path: Path, warm_forker: Forker) -> None:
    out = tmp_path / "delta_net"
    train(warm_forker, "delta_net", out, "--preset", "fixture")
    model, report = portable.DeltaNetForCausalLM.from_pretrained(out, output_loading_info=True)
    assert not any(report.values())
    assert mqar.accuracy(model, 16) > 0.95
    assert json.loads((out / "training.json").read_text())["recall"]["16"] > 0.95
    assert not (tmp_path / "delta_net.training").exists()


def test_recall_batches_repeat_every_pair_once() -> None:
    ids, query_positions = mqar.batch(4096, 5, 7, torch.Generator().manual_seed(0))
    assert ids.shape == (7, 20)
    assert query_positions.tolist() == [10, 12, 14, 16, 18]
    for row in ids:
        first, second = (half.view(5, 2).tolist() for half in row.split(10))
        assert sorted(first) == sorted(second)
        keys, values = zip(*first, strict=True)
        assert len(set(keys)) == len(set(values)) == 5
        assert all(1024 <= key < 2048 for key in keys)
        assert all(2048 <= value < 3072 for value in values)


@pytest.mark.parametrize("shortest", [0.0, 0.04])
def test_steps_of_decay_are_limited_or_drawn(shortest: float) -> None:
    recipe = train_tiny.Recipe(
        "gated_deltanet",
        num_heads=8,
        head_dim=16,
        shortest_decay_step=shortest,
        longest_decay_step=0.05,
    )
    parameters = train_tiny.build(recipe).named_parameters()
    biases = [p.detach() for name, p in parameters if name.endswith("dt_bias")]
    steps = F.softplus(torch.cat(biases))
    assert len(steps) == 16 and steps.max() < 0.0501 and len(steps.unique()) > 4
    if shortest:
        assert 0.0399 < steps.min() < 0.045 < steps.max()


def test_text_and_tokenizer_are_used(tmp_path: Path, warm_forker: Forker) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"?": 0, "a": 1, "b": 2}, "?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "a b " * 500}) + "\n")
    printed = train(
        warm_forker, "gated_deltanet", tmp_path / "out", *QUICK, "--set", "text_rows=2", "--set",
        "text_length=16", "--text", str(tmp_path / "text.jsonl"), "--tokenizer",
        str(tmp_path / "tokenizer"),
    )  # fmt: skip
    assert "parameters" in printed
    assert (tmp_path / "out" / "tokenizer.json").exists()
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == (
        "gated_deltanet"
    )
    assert load_file(tmp_path / "out" / "model.safetensors")


@pytest.mark.slow
def test_hybrid_is_built_in_the_class_of_transformers(tmp_path: Path, warm_forker: Forker) -> None:
    train(warm_forker, "qwen3_5", tmp_path / "out", *QUICK, "--set", "num_layers=4")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["model_type"] == "qwen3_5_text"
    assert config["layer_types"] == ["linear_attention"] * 3 + ["full_attention"]


def test_two_lookups_lead_to_each_value() -> None:
    pairs = 5
    generator = torch.Generator().manual_seed(0)
    ids, positions = mqar.two_hop_batch(512, pairs, 3, generator)
    for tokens in ids.tolist():
        listed = list(zip(tokens[::2], tokens[1::2], strict=True))
        value_of, middle_of = dict(listed[:pairs]), dict(listed[pairs : 2 * pairs])
        answers = {tokens[position]: tokens[position + 1] for position in positions}
        assert answers == {key: value_of[middle] for key, middle in middle_of.items()}
        assert len(answers) == pairs and not answers.keys() & value_of.keys(), (
            "one lookup is not enough"
        )
