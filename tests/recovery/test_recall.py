"""Recovery on text and recall: which tokens are in the loss, which layers are trained."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import statetrim as st
from helpers import tiny
from helpers.recovery_runs import record
from helpers.tiny import Load
from statetrim.recovery.adapters import attach_adapters
from statetrim.recovery.data import TrainingRows, load_training_rows
from statetrim.recovery.distillation import Distillation, checked_logit_head
from statetrim.recovery.options import RecoverOptions
from statetrim.runtime.loading import load_live, load_tokenizer
from statetrim.tasks.recall import associations, plain_tokens, recall_sequences

LENGTH = 64
OPTIONS: dict[str, Any] = {
    "tokens": 1024, "length": LENGTH, "batch_size": 4, "learning_rate": 1e-2, "recall": 0.5,
}  # fmt: skip


@pytest.fixture(autouse=True)
def few_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("statetrim.recovery.data.MAX_HELD_OUT_ROWS", 4)


@pytest.fixture
def model(pair: Any) -> st.Checkpoint:
    return pair("delta_net")[0]


@pytest.fixture
def small(pair: Any) -> st.Checkpoint:
    return pair("delta_net")[1]


@pytest.fixture
def recover(model: st.Checkpoint, small: st.Checkpoint, text: Path, tmp_path: Path) -> Any:
    """Recovers the cut with OPTIONS and others; the result, and what it recorded."""

    def run(**changed: Any) -> tuple[st.Checkpoint, dict[str, Any]]:
        options = OPTIONS | changed
        out = st.recover(small, teacher=model, text=text, out=tmp_path / "out", **options)
        return out, record(out.path)

    return run


def load_rows(small: st.Checkpoint, text: Path, **changed: Any) -> TrainingRows:
    return load_training_rows(small, None, text, RecoverOptions(**OPTIONS | changed))


def test_every_batch_has_its_part_of_recall(small: st.Checkpoint, text: Path) -> None:
    data = load_rows(small, text)
    recall = data.recall
    assert data.ids.shape == (16, LENGTH) and recall is not None
    assert [int(recall_ids.sum()) for _, recall_ids in data.batches(4)] == [2, 2, 2, 2]
    for row in data.ids[recall.is_recall].tolist():  # 15 pairs, a query of each, four more tokens
        pairs = dict(zip(row[:30:2], row[1:30:2], strict=True))
        assert all(row[n + 1] == pairs[row[n]] for n in recall.answer_positions.tolist())
    assert len(recall.answer_positions) == 15
    plain = load_rows(small, text, recall=0.0)
    assert plain.recall is None and data.ids[~recall.is_recall].equal(plain.ids[:8])


def test_trained_held_out_calibrated_and_tested_sequences_differ(
    small: st.Checkpoint, text: Path
) -> None:
    data = load_rows(small, text, tokens=2**12)
    trained, recall = data.ids, data.recall
    assert recall is not None
    tokenizer = load_tokenizer(small)
    pairs = len(recall.answer_positions)
    positions, _ = associations(len(plain_tokens(tokenizer)), pairs, 256)
    tested = plain_tokens(tokenizer)[positions]
    calibrated = recall_sequences(tokenizer, 4 * pairs * 256, length=4 * pairs).ids
    id_sets = [trained[recall.is_recall], recall.held_out, calibrated, tested]
    prefixes = [{tuple(row[: 2 * pairs]) for row in ids.tolist()} for ids in id_sets]
    assert [len(rows) for rows in prefixes] == [32, 4, 256, 256]
    assert len(set.union(*prefixes)) == 32 + 4 + 256 + 256


def test_long_rows_hold_several_sequences(small: st.Checkpoint, text: Path) -> None:
    data = load_rows(small, text, length=200, tokens=4000)
    assert data.recall is not None and len(data.recall.answer_positions) == 3 * 15
    for row in data.ids[data.recall.is_recall].tolist():
        for start in (0, 60, 120):
            sequence = row[start : start + 60]
            pairs = dict(zip(sequence[:30:2], sequence[1:30:2], strict=True))
            assert all(sequence[n + 1] == pairs[sequence[n]] for n in range(30, 60, 2))


def test_the_loss_is_that_of_text_and_of_answers_by_their_rows(
    model: st.Checkpoint, small: st.Checkpoint, text: Path
) -> None:
    data = load_rows(small, text)
    student, teacher = load_live(small), load_live(model)
    assert data.recall is not None
    ids, is_recall = data.ids[:3].long(), data.recall.is_recall[:3]
    assert is_recall.tolist() == [False, True, False]
    heads = checked_logit_head(student), checked_logit_head(teacher)
    positions = data.recall.answer_positions
    models = student.module, heads[0], teacher.module, heads[1]
    distillation = Distillation(*models, 2.0, answer_positions=positions)
    student.module.requires_grad_(True)
    embedding = student.module.get_input_embeddings().weight  # its head is a detached copy
    output = distillation(ids, is_recall)
    output["loss"].backward()
    gradient, embedding.grad = embedding.grad, None

    hidden, teacher_hidden = (live.hidden_states(ids) for live in (student, teacher))
    student_logits, teacher_logits = (
        functional.linear(h, head.weight.detach(), head.bias)
        for h, head in zip((hidden, teacher_hidden), heads, strict=True)
    )
    expected = torch.zeros(2, 3, dtype=torch.float64)
    total: Any = 0.0
    for row in range(3):
        positions = (
            data.recall.answer_positions.tolist() if is_recall[row] else list(range(LENGTH - 1))
        )
        for position in positions:
            q, p = (
                functional.log_softmax(x[row, position] / 2.0, -1)
                for x in (student_logits, teacher_logits)
            )
            cross_entropy = -functional.log_softmax(student_logits[row, position], -1)[
                ids[row, position + 1]
            ]
            divergence = (p.exp() * (p - q)).sum()
            total = total + (cross_entropy + 4 * divergence) / len(positions) / 3
            parts = torch.stack([torch.ones(()), cross_entropy.detach(), divergence.detach()])
            expected[int(is_recall[row])] += parts.double() / len(positions)
    total.backward()
    torch.testing.assert_close(output["sums"], expected.float(), rtol=1e-4, atol=1e-6)
    assert output["loss"].item() == pytest.approx(total.item(), rel=1e-5)
    torch.testing.assert_close(gradient, embedding.grad, rtol=1e-3, atol=1e-6)


def test_end_to_end_on_recall_is_recorded(recover: Any) -> None:
    _, content = recover()
    assert content["options"]["recall"] == 0.5 and content["data"]["recall"]["pairs"] == 15
    assert len(content["curve"]) == 4
    for line in content["curve"]:  # half of the rows each
        for part in ("ce", "kl"):
            halves = (line[f"text_{part}"] + line[f"recall_{part}"]) / 2
            assert line[part] == pytest.approx(halves, rel=1e-6)


@tiny.every_type(*tiny.ONE_OF_EACH_MIXER)
def test_whole_mixers_of_every_family_can_be_written_back(
    model_type: str, checkpoint: Load
) -> None:
    live = load_live(st.open(checkpoint(model_type)))
    layer = max(live.mixers)
    adapters = attach_adapters(live, RecoverOptions(layers=[layer], whole=True))
    trained = {name for name, value in live.module.named_parameters() if value.requires_grad}
    mixer_ids = {id(value) for value in live.mixers[layer].parameters()}
    named = dict(live.module.named_parameters())
    assert {id(named[name]) for name in trained} == mixer_ids
    assert {name for update in adapters.updates for name in update.parameters} == trained


@pytest.mark.parametrize("layerwise", [True, False])
def test_named_layers_whole_and_nothing_else(
    layerwise: bool, small: st.Checkpoint, recover: Any
) -> None:
    out, content = recover(layerwise=layerwise, layers=[1], whole=True, tokens=4096)
    before, after = tiny.tensors(small.path), tiny.tensors(out.path)
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed == set(content["trained_tensors"])
    assert changed and all(name.startswith("model.layers.1.attn.") for name in changed)
    assert {name.split(".")[4] for name in changed} >= {"q_proj", "k_proj", "v_proj", "o_proj"}
    name, curve = "model.layers.1.attn.o_proj.weight", content["curve"]
    rank = int(torch.linalg.matrix_rank(after[name] - before[name]))
    assert rank > 16, "more than LoRA of that rank can do"
    assert curve[-1]["loss"] < curve[0]["loss"]
    if layerwise:
        assert {line["layer"] for line in curve} == {1}
        errors = [line["recall_error"] for line in content["held_out"]]
        assert len(errors) == 17 and errors[-1] < errors[0]
    with torch.no_grad():
        assert st.load(out)(torch.arange(1, 20)[None]).logits.isfinite().all()


def test_layerwise_loss_weighs_text_and_recall_by_their_own_size(
    model: st.Checkpoint, small: st.Checkpoint, text: Path, recover: Any
) -> None:
    """The first step's loss, before any update, by a plain recomputation."""
    _, content = recover(layerwise=True, layers=[0])
    data = load_rows(small, text)
    assert data.recall is not None
    (ids, is_recall), answer_positions = data.batches(4)[0], data.recall.answer_positions
    held_out_ids = data.recall.held_out.long()
    original, cut = st.load(model), st.load(small)
    with torch.no_grad():
        mixer_inputs = [
            original.model.layers[0].attn_norm(original.model.embeddings(x))
            for x in (ids, held_out_ids)
        ]
        (original_output, cut_output), (original_held_out, cut_held_out) = (
            [live.model.layers[0].attn(x) for live in (original, cut)] for x in mixer_inputs
        )

    def relative_error(answer: Tensor, target: Tensor) -> float:
        return float((answer - target).square().sum() / target.square().sum())

    text_error = relative_error(cut_output[~is_recall], original_output[~is_recall])
    recall_error = relative_error(
        cut_output[is_recall][:, answer_positions], original_output[is_recall][:, answer_positions]
    )
    assert content["curve"][0]["loss"] == pytest.approx((text_error + recall_error) / 2, rel=1e-4)
    answers = [output[:, answer_positions] for output in (cut_held_out, original_held_out)]
    error = pytest.approx(relative_error(*answers), rel=1e-4)
    assert content["held_out"][0] == {"layer": 0, "tokens": 0, "recall_error": error}


@pytest.mark.parametrize("layerwise", [True, False])
def test_a_layer_without_linear_attention_is_refused(layerwise: bool, recover: Any) -> None:
    with pytest.raises(st.StatetrimError, match="layer 9 has no linear attention"):
        recover(layerwise=layerwise, layers=[9])
