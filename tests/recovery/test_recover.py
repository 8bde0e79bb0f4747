"""Recovery of every family that runs here: what it trains, writes and refuses."""

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.fused import fuse_output_projections
from helpers.recovery_runs import record
from helpers.refusal import assert_refused
from statetrim.commands.steps.recover import show_recovery
from statetrim.families.delta_net import DeltaNet
from statetrim.progress import Progress
from statetrim.recovery import trainer as training
from statetrim.recovery.adapters import attach_adapters
from statetrim.recovery.options import RecoverOptions
from statetrim.runtime.live import MixerCall, hook_mixers
from statetrim.runtime.loading import load_live
from statetrim.storage.text import Sequences

QUICK: dict[str, Any] = {"batch_size": 4, "learning_rate": 1e-2}


def repeated_batch(steps: int = 6, batch: int = 4, length: int = 24) -> Sequences:
    """One random batch for every step, so that the loss must fall."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, tiny.VOCABULARY, (batch, length), generator=generator).int()
    return Sequences(ids.repeat(steps, 1), {"digest": f"{steps} x {batch} x {length}"})


# --- every family --------------------------------------------------------------------------------


@tiny.every_type(*tiny.WHOLE_RUNS)
def test_recovery_ends_in_a_stock_checkpoint(
    model_type: str, pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, small = pair(model_type)
    ids = torch.randint(1, tiny.VOCABULARY, (2, 20), generator=torch.Generator().manual_seed(1))
    unmerged: list[Tensor] = []
    real_gather = training.RecoveryTrainer.gather_trained

    def capture_logits(self: Any) -> dict[str, Tensor]:
        student = precise(copy.deepcopy(self.model.student))
        with torch.no_grad():
            unmerged.append(student(input_ids=ids, use_cache=False).logits)
        return real_gather(self)

    monkeypatch.setattr(training.RecoveryTrainer, "gather_trained", capture_logits)
    steps = 3 if model_type.startswith("qwen4") else 6  # its hyper-connections are slow here
    out = tmp_path / "out"
    st.recover(small, teacher=model, text=repeated_batch(steps), out=out, **QUICK)

    curve = record(out)["curve"]
    assert curve[-1]["loss"] < curve[0]["loss"]
    assert {"step", "tokens", "loss", "ce", "kl", "learning_rate"} == set(curve[0])

    stock, info = tiny.stock_class(model_type).from_pretrained(out, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        merged = precise(stock)(input_ids=ids, use_cache=False).logits
    assert (merged - unmerged[-1]).norm() < 1e-5 * merged.norm()

    before, after = tiny.tensors(small.path), tiny.tensors(out)
    assert list(before) == list(after)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == set(record(out)["trained_tensors"]) == expected_changes(small)
    for file in small.path.glob("*.safetensors"):  # names, order and sizes: the same headers
        length = 8 + int.from_bytes(file.read_bytes()[:8], "little")
        assert (out / file.name).read_bytes()[:length] == file.read_bytes()[:length]
    for name in ("config.json", "tokenizer.json", "statetrim/prune.json", "statetrim/plan.json"):
        assert (out / name).read_bytes() == (small.path / name).read_bytes()
    assert "## Recovery" in (out / "README.md").read_text()


def precise(live: Any) -> Any:
    """The model in float64, so that merged weights differ by rounding only; experts stay as is."""
    has_experts = any(name.endswith("experts") for name, _ in live.named_modules())
    return live.eval() if has_experts else live.double().eval()


def expected_changes(small: st.Checkpoint) -> set[str]:
    """Names of matrices and convolutions below a mixer's prefix; no norms and decays."""
    leaves = {template.rpartition(".")[2] for template in small.family.mixer_prefixes}
    names = set()
    for name in small.tensors:
        parts = name.split(".")
        mixer_index = next((i for i, part in enumerate(parts) if part in leaves), None)
        if mixer_index is None or "layers" not in parts or "visual" in parts:
            continue
        if int(parts[parts.index("layers") + 1]) not in small.geometry.layers:
            continue
        leaf = ".".join(parts[mixer_index + 1 :])
        if (leaf.endswith("weight") and ("proj" in leaf or "conv" in leaf)) or (
            "conv" in leaf and leaf.endswith("bias")
        ):
            names.add(name)
    return names


# --- what is trained -----------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["delta_net", "qwen3_next", "bamba"])
def test_coverage_counts_what_is_there(model_type: str, checkpoint: Any) -> None:
    model = st.open(checkpoint(model_type))
    live_model = load_live(model)
    module = live_model.module
    coverage = attach_adapters(live_model, RecoverOptions()).coverage
    assert coverage.layers == len(model.geometry.layers)
    adapted = [name for name, _ in module.named_modules() if name.endswith("lora_A")]
    assert len(adapted) == coverage.projections
    trained = [p for p in module.parameters() if p.requires_grad]
    assert coverage.trained_parameters == sum(p.numel() for p in trained)
    assert all(p.dtype == torch.float32 for p in trained)


def test_a_projection_that_the_family_does_not_list_is_refused(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = st.open(checkpoint("delta_net"))
    monkeypatch.setattr(DeltaNet, "projections", ("q_proj", "k_proj", "v_proj", "o_proj"))
    with pytest.raises(st.StatetrimError, match=r"would miss the linear module .*attn\.b_proj"):
        attach_adapters(load_live(model), RecoverOptions())


def test_an_adapter_that_a_kernel_reads_past_is_refused(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fuse_output_projections(monkeypatch)
    model, small = pair("delta_net")
    with pytest.raises(st.StatetrimError, match="4 trained parameters take no part in the loss"):
        st.recover(small, teacher=model, text=repeated_batch(), out=tmp_path / "out", **QUICK)


def test_a_projection_whose_weight_a_kernel_reads_is_trained_in_full(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As RWKV-6's `x_proj.2`."""
    fuse_output_projections(monkeypatch)
    monkeypatch.setattr(DeltaNet, "read_projections", ("o_proj",))
    model, small = pair("delta_net")
    adapters = attach_adapters(load_live(small), RecoverOptions())
    trained = [name for update in adapters.updates for name in update.parameters]
    assert {name.partition("attn.")[2] for name in trained if "o_proj" in name} == {"o_proj.weight"}
    out = st.recover(small, teacher=model, text=repeated_batch(), out=tmp_path / "out", **QUICK)
    name = "model.layers.0.attn.o_proj.weight"
    assert not torch.equal(out.tensor(name), small.tensor(name))


# --- ways to train -------------------------------------------------------------------------------


def test_micro_batches_and_gradient_checkpointing_change_nothing(pair: Any, tmp_path: Path) -> None:
    model, small = pair("qwen3_5_text")
    variants: list[dict[str, Any]] = [{}, {"micro_batch": 1}, {"gradient_checkpointing": True}]
    curves = []
    for number, variant in enumerate(variants):
        out = tmp_path / str(number)
        st.recover(small, teacher=model, text=repeated_batch(3), out=out, **QUICK, **variant)
        curves.append(torch.tensor([line["loss"] for line in record(out)["curve"]]))
    for curve in curves[1:]:
        torch.testing.assert_close(curve, curves[0], rtol=1e-5, atol=1e-5)


def test_without_a_teacher_the_loss_is_cross_entropy(pair: Any, tmp_path: Path) -> None:
    _, small = pair("delta_net")
    out = tmp_path / "out"
    st.recover(small, text=repeated_batch(), out=out, **QUICK)
    curve = record(out)["curve"]
    assert all(line["kl"] == 0 and line["loss"] == line["ce"] for line in curve)
    assert curve[-1]["loss"] < curve[0]["loss"]
    ids = repeated_batch().ids[:4].long()
    with torch.no_grad():
        expected = tiny.stock_class("delta_net").from_pretrained(small.path)(ids, labels=ids).loss
    assert curve[0]["loss"] == pytest.approx(float(expected), rel=1e-5)


def test_the_control_is_the_original_under_the_same_recovery(pair: Any, tmp_path: Path) -> None:
    model, small = pair("delta_net")
    out = tmp_path / "out"
    recovered = st.recover(
        small, teacher=model, text=repeated_batch(), out=out, control=True, **QUICK
    )
    assert recovered.geometry == model.geometry
    curve = record(out)["curve"]
    assert curve[0]["kl"] == pytest.approx(0, abs=1e-6) and curve[-1]["kl"] > 1e-6
    assert record(out)["student"] == record(out)["teacher"] == model.digest


@pytest.mark.parametrize("model_type", ["delta_net", "qwen3_5_moe", "bamba"])
def test_layerwise_repairs_every_mixer(model_type: str, pair: Any, tmp_path: Path) -> None:
    model, small = pair(model_type)
    out = tmp_path / "out"
    st.recover(small, teacher=model, text=repeated_batch(), out=out, layerwise=True, **QUICK)
    curve = record(out)["curve"]
    for layer in small.geometry.layers:
        losses = [line["loss"] for line in curve if line["layer"] == layer]
        assert losses[-1] < 0.8 * losses[0]
    before, after = tiny.tensors(small.path), tiny.tensors(out)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == expected_changes(small)
    # The first loss recomputed: both mixers on the original's input, with full models in memory.
    expected = mixer_error(model, small, repeated_batch().ids[:4].long())
    for layer, error in expected.items():
        first = next(line["loss"] for line in curve if line["layer"] == layer)
        assert first == pytest.approx(error, rel=1e-4)


@torch.no_grad()
def mixer_error(model: st.Checkpoint, small: st.Checkpoint, ids: Tensor) -> dict[int, float]:
    original, pruned = load_live(model), load_live(small)
    calls, errors = list[MixerCall](), dict[int, float]()
    with hook_mixers(original.mixers, calls.append):
        original.hidden_states(ids)
    for call in calls:
        error = (call.repeat(pruned.mixers[call.layer]) - call.output).square().mean()
        errors[call.layer] = float(error / call.output.square().mean())
    return errors


def test_layerwise_resumes_at_the_layer_it_was_stopped_in(pair: Any, tmp_path: Path) -> None:
    model, small = pair("bamba")
    text = tiny.write_text(tmp_path / "words.jsonl", 2000)
    recall = {"text": text, "tokens": 576, "length": 24, "recall": 0.5, "whole": True}
    options: dict[str, Any] = {"teacher": model, "layerwise": True, **QUICK, **recall}
    st.recover(small, out=tmp_path / "whole", **options)

    def stop(progress: Progress) -> None:
        if progress.label == "layer 2" and progress.done == 3:
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        st.recover(small, out=out, progress=stop, **options)
    labels: list[str] = []
    st.recover(small, out=out, progress=lambda m: labels.append(m.label), **options)
    assert set(labels) == {"layer 2"}
    for file in (tmp_path / "whole").rglob("*"):
        if file.is_file():
            assert (out / file.relative_to(tmp_path / "whole")).read_bytes() == file.read_bytes()


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "expected_text"), load_cases("recover"))
def test_what_cannot_be_done_is_one_sentence(
    options: dict[str, Any],
    expected_text: str,
    pair: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`environ` is a variable of the environment."""
    model, small = pair("delta_net")
    arguments = {"teacher": model, "text": repeated_batch(), **QUICK, **options}
    if variable := arguments.pop("environ", None):
        monkeypatch.setenv(*variable.split("="))
    with pytest.raises(st.StatetrimError, match=expected_text):
        st.recover(small, out=tmp_path / "out", **arguments)
    assert not list(tmp_path.iterdir())


def test_a_teacher_with_another_tokenizer_is_refused(
    pair: Any, checkpoint: Any, tmp_path: Path
) -> None:
    _, small = pair("delta_net")
    text = str(tiny.write_text(tmp_path / "words.jsonl", 400))
    teacher = shutil.copytree(checkpoint("delta_net"), tmp_path / "teacher")
    words = json.loads((teacher / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["w1"], vocabulary["w2"] = vocabulary["w2"], vocabulary["w1"]
    (teacher / "tokenizer.json").write_text(json.dumps(words))
    command = ["recover", str(small.path), "--teacher", str(teacher), "--text", text]
    sizes = ["--tokens", "64", "--length", "16", "--batch-size", "2", "-o", str(tmp_path / "o")]
    assert_refused([*command, *sizes], "different tokenizers", tmp_path)


def test_records_of_earlier_recoveries_are_kept(
    pair: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, small = pair("delta_net")
    seeds = {}
    for generation in range(3):
        out = tmp_path / f"out{generation}"
        small = st.recover(small, text=repeated_batch(1), out=out, seed=generation, **QUICK)
    for name in ("recover.json", "source_recover.json", "source_source_recover.json"):
        seeds[name] = json.loads((out / "statetrim" / name).read_text())["options"]["seed"]
    assert list(seeds.values()) == [2, 1, 0]
    show_recovery(small, "OUT", as_json=False)
    assert re.search(r"^[\d,]+ tokens in", capsys.readouterr().out, re.M)


def test_a_tracker_gets_every_step_and_its_files_stay(pair: Any, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    _, small = pair("delta_net")
    out = tmp_path / "out"
    st.recover(small, text=repeated_batch(3), out=out, report_to=["tensorboard"], **QUICK)
    (events,) = (out / "statetrim").rglob("*tfevents*")
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    losses = [scalar.value for scalar in accumulator.Scalars("train/loss")]
    assert losses == pytest.approx([line["loss"] for line in record(out)["curve"]], rel=1e-6)
    assert not (out / "training").exists() and not list((out / "statetrim").rglob("checkpoint-*"))
    with pytest.raises(st.StatetrimError, match="diary is not"):
        st.recover(small, text=repeated_batch(1), out=tmp_path / "o", report_to=["diary"], **QUICK)


def test_a_disk_that_will_be_full_is_noticed_first(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, small = pair("delta_net")
    usage = shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(OSError, match="the result will need"):
        st.recover(small, text=repeated_batch(1), out=tmp_path / "out", **QUICK)


def test_loss_that_is_not_a_number_ends_the_run(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrim.recovery import distillation

    real_loss = distillation.chunked_loss

    def nan_loss(*args: Any) -> Any:
        loss, parts = real_loss(*args)
        return loss * torch.nan, parts

    monkeypatch.setattr(distillation, "chunked_loss", nan_loss)
    _, small = pair("delta_net")
    with pytest.raises(st.StatetrimError, match="the loss of step 1 is not a number"):
        st.recover(small, text=repeated_batch(1), out=tmp_path / "out", **QUICK)
    assert not (tmp_path / "out").exists()
