"""Calibration from several sources: separate sums, resuming, and mixtures of them."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional

import statetrim as st
from helpers.forker import run_as_ranks
from helpers.refusal import run_successfully
from helpers.sums import assert_statistics_close
from helpers.tiny import Load
from statetrim.artifacts.record import header
from statetrim.artifacts.statistics import TEXT, Statistics
from statetrim.runtime.loading import load_tokenizer
from statetrim.statistics.mixture import mix_statistics
from statetrim.statistics.readouts import fit_projection
from statetrim.tasks.recall import recall_sequences

ALL = ["drrqr", "grad", "s_wanda", "energy", "product", "readout_greedy"]
SETTINGS: dict[str, Any] = {"tokens": 1280, "length": 20, "batch_size": 4}


@pytest.fixture(scope="module")
def model(checkpoint: Load) -> st.Checkpoint:
    return st.open(checkpoint("qwen3_5_text"))


@pytest.fixture(scope="module")
def whole(model: st.Checkpoint, text: Path) -> Statistics:
    return st.calibrate(model, text, methods=ALL, **SETTINGS, recall=0.625)


def test_each_source_is_what_it_alone_would_show(
    model: st.Checkpoint, text: Path, whole: Statistics
) -> None:
    assert whole.lineage["data"][0]["count"] * 20 == 480  # the tokens that are not generated
    forward = [method for method in ALL if method != "grad"]
    sequences = recall_sequences(load_tokenizer(model), 800)
    statistics = st.calibrate(model, sequences, methods=forward, batch_size=4)
    for part in statistics.sum_names:
        for layer, sums in statistics.layers.items():
            expected, actual = sums[part], whole.sources["recall"][layer][part]
            largest = expected.abs().max()
            assert torch.allclose(actual, expected, rtol=1e-12, atol=1e-12 * largest)
    plain = st.calibrate(model, text, methods=ALL, **SETTINGS | {"tokens": 480}, recall=0.0)
    assert_statistics_close(plain, Statistics(whole.layers), 1e-12)
    assert list(whole.sources) == ["text", "recall"]
    assert sum(whole.shares.values()) == pytest.approx(1)


def test_gradients_of_recall_count_only_what_can_be_answered(
    model: st.Checkpoint, whole: Statistics
) -> None:
    generated = recall_sequences(load_tokenizer(model), 800)
    assert generated.answer_positions is not None
    live: Any = st.load(model)
    total = torch.zeros(())
    for batch in generated.batches(4):
        logits = live(input_ids=batch, use_cache=False).logits.double()
        for row in range(len(batch)):
            for position in generated.answer_positions.tolist():
                log_p = functional.log_softmax(logits[row, position], -1)
                total = total - log_p[batch[row, position + 1]]
    total.backward()  # type: ignore[no-untyped-call]
    geometry = model.geometry
    for layer, sums in whole.generated["recall"].items():
        weight = live.model.layers[layer].linear_attn.in_proj_qkv.weight
        rows = geometry.num_k_heads * geometry.head_k_dim
        query = weight.grad[:rows].reshape(geometry.num_k_heads, geometry.head_k_dim, 1, -1)
        assert torch.allclose(sums["query_gradient"], query.double(), rtol=1e-3, atol=1e-4)


def test_two_processes_give_the_same_sums(model: st.Checkpoint, text: Path, tmp_path: Path) -> None:
    sizes = {"tokens": 640, "length": 20, "batch_size": 2, "recall": 0.65}
    options = [f"--{name.replace('_', '-')}={value}" for name, value in sizes.items()]
    out, methods = tmp_path / "two.safetensors", ["drrqr", "product"]
    command = ["calibrate", str(model.path), "--text", str(text), *options]
    run_as_ranks(lambda: run_successfully([*command, "--for", ",".join(methods), "-o", str(out)]))
    assert_statistics_close(
        st.calibrate(model, text, methods=methods, **sizes), Statistics.load(out), 1e-12
    )  # type: ignore[arg-type]


def test_the_mixture_is_what_a_plain_recomputation_gives(whole: Statistics) -> None:
    mixture, weights = mix_statistics(whole), whole.shares
    assert mixture.lineage["shares"] == weights and not mixture.generated
    for layer, sums in mixture.layers.items():
        for part in ("query_gram", "key_unit_gram", "readout_gram"):
            other = {"query_gram": "key_gram", "key_unit_gram": "query_unit_gram"}.get(part)
            expected = np.zeros(sums[part].shape)
            for name, share in weights.items():
                source_sums = whole.sources[name][layer]
                for head in range(len(expected)):
                    gram = source_sums[part][head].numpy()
                    size = np.trace(gram)
                    if other:
                        size += np.trace(source_sums[other][head].numpy())
                    expected[head] += share * gram / size
            assert sums[part].numpy() == pytest.approx(expected, rel=1e-12)
        gradient = np.zeros(sums["query_gradient"].shape)
        for name, share in weights.items():
            query, key = (
                whole.sources[name][layer][f"{side}_gradient"].numpy() for side in ("query", "key")
            )
            for head in range(len(gradient)):
                size = np.abs(query[head]).sum() + np.abs(key[head]).sum()
                gradient[head] += share * query[head] / size
        assert sums["query_gradient"].numpy() == pytest.approx(gradient, rel=1e-12)
        assert sums.tokens == sum(
            source_sums[layer].tokens for source_sums in whole.sources.values()
        )


def test_nothing_of_the_others_is_text_alone(model: st.Checkpoint, whole: Statistics) -> None:
    assert mix_statistics(Statistics(whole.layers)).layers is whole.layers


def test_shares_change_the_choice_and_stand_in_the_plan(
    model: st.Checkpoint, whole: Statistics
) -> None:
    mixed = st.select(model, "product", "6x100%", statistics=whole)
    text_alone = st.select(
        model, "product", "6x100%", statistics=Statistics(whole.layers, whole.lineage)
    )
    first, second = (plan.axes["key"].kept for plan in (mixed, text_alone))
    assert any(not torch.equal(first[layer], second[layer]) for layer in first)
    assert mixed.lineage["statistics"]["shares"] == whole.shares


def test_a_refit_weighs_each_source_by_its_own_size(
    model: st.Checkpoint, text: Path, tmp_path: Path
) -> None:
    plan = st.select(model, to="100%x4", method="rand")
    small = st.prune(model, plan, tmp_path / "small")
    statistics = st.calibrate(small, text, original=model, **SETTINGS, recall=0.65)
    for layer, mixed_sums in mix_statistics(statistics).layers.items():
        gram: Any = 0.0
        target: Any = 0.0
        for name, share in statistics.shares.items():
            source_sums = statistics.sources[name][layer]
            gram += share * source_sums["readout_moment"] / source_sums["target_square"]
            target += share * source_sums["target_moment"] / source_sums["target_square"]
        expected = np.linalg.solve(gram.numpy().T, target.numpy().T).T
        assert fit_projection(mixed_sums, 0.0).numpy() == pytest.approx(
            expected, rel=1e-6, abs=1e-8
        )
    out = st.refit(small, statistics, out=tmp_path / "refitted")
    record = json.loads((out.path / "statetrim" / "refit.json").read_text())
    assert record["statistics"]["shares"] == statistics.shares


def test_saved_and_loaded(whole: Statistics, tmp_path: Path) -> None:
    whole.save(tmp_path / "s")
    assert_statistics_close(whole, Statistics.load(tmp_path / "s"), 0.0)
    with safe_open(tmp_path / "s", "pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    for spoiled, message in (
        ({"Recall.0.tokens": torch.tensor(3)}, "not a statistic"),
        ({"text.0.tokens": torch.tensor(3)}, "not a statistic"),
        ({"a.b.0.tokens": torch.tensor(3)}, "not a statistic"),
        ({"other.0.tokens": torch.tensor(3)}, "different layers"),
        ({"recall.7.query_gram": torch.zeros(1, 1, 1).double()}, "no token count"),
        ({"0.readout_moment": torch.zeros(1, 1).double()}, "layers differ in tokens or sums"),
        (
            {"recall.0.readout_moment": torch.zeros(1, 1).double()},
            "layers differ in tokens or sums",
        ),
        ({"0.tokens": torch.tensor(3)}, "layers differ in tokens or sums"),
        (
            {
                f"recall.{layer}.readout_moment": torch.zeros(1, 1).double()
                for layer in whole.layers
            },
            "sources differ in their sums",
        ),
        *(
            ({"0.query_gram": tensors["0.query_gram"] * factor}, "values that are not finite")
            for factor in (math.nan, math.inf, 1e200, 1e-200)
        ),
        *(
            ({"0.tokens": torch.tensor(count)}, "'0.tokens', which is not a count")
            for count in (-1, -5, 2**53 + 1, 2**62, 1 + 2j, 1.0, True, [1, 2])
        ),
    ):
        save_file(tensors | spoiled, tmp_path / "bad", metadata=metadata)
        with pytest.raises(st.StatetrimError, match=message):
            Statistics.load(tmp_path / "bad")


def test_statistics_of_no_tokens_are_refused(whole: Statistics, tmp_path: Path) -> None:
    """A source without tokens has no weight; a file without any was never filled."""
    whole.save(tmp_path / "good")
    tensors = load_file(tmp_path / "good")
    metadata = {"statetrim": json.dumps(header("statistics"))}
    zero = {name: torch.tensor(0) for name in tensors if name.endswith(".tokens")}
    save_file(tensors | zero, tmp_path / "bad", metadata=metadata)
    with pytest.raises(st.StatetrimError, match="0 tokens"):
        mix_statistics(Statistics.load(tmp_path / "bad"))
    generated = {name: count for name, count in zero.items() if not name[0].isdigit()}
    save_file(tensors | generated, tmp_path / "text", metadata=metadata)
    assert Statistics.load(tmp_path / "text").shares[TEXT] == 1.0


def test_what_cannot_be_is_one_sentence(
    model: st.Checkpoint, text: Path, whole: Statistics
) -> None:
    for share in (1.0, -0.1):
        with pytest.raises(st.StatetrimError, match=r"text|fraction"):
            st.calibrate(model, text, **SETTINGS, recall=share)
    layers = {0: st.LayerStatistics(3, {"query_gram": torch.zeros(2, 4, 4).double()})}
    other = {0: st.LayerStatistics(3, {"query_gram": torch.zeros(2, 3, 3).double()})}
    with pytest.raises(st.StatetrimError, match="differ in the size"):
        mix_statistics(Statistics(layers, {}, {"recall": other}))
    flat = {0: st.LayerStatistics(3, {"query_gram": torch.zeros(4).double()})}
    with pytest.raises(st.StatetrimError, match="layer 0 have no usable 'query_gram'"):
        mix_statistics(Statistics(flat, {}, {"recall": flat}))
