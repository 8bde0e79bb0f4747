"""Recovery in two processes on gloo: the loss curve of one process, sharding, resuming. It never
changes what another run left; kills are in tests/test_adversary.py."""

import json
import math
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import statetrim as st
from helpers import recovery_runs, tiny
from helpers.forker import Forker, run_as_ranks
from helpers.refusal import check_refusal, fingerprint
from statetrim.recovery.fsdp import Sharder, gather_full, is_shard
from statetrim.runtime.loading import load_live
from statetrim.runtime.placement import Placement


@torch.no_grad()
def compare_sharded(path: str) -> dict[str, float]:
    ids = torch.arange(12).unsqueeze(0) % 50 + 1
    live = load_live(path, Placement(device="cpu:0", layerwise=True))  # as the Trainer names it
    plain, split = st.load(path), live.module.requires_grad_(False)
    Sharder(live.device).shard_model(live)
    expected, actual = (m.base_model(input_ids=ids, use_cache=False)[0] for m in (plain, split))
    heads = [gather_full(m.get_output_embeddings().weight) for m in (plain, split)]
    return {
        "hidden": float((actual - expected).abs().max() / expected.abs().max()),
        "head": float((heads[1] - heads[0]).abs().max()),
        "whole": sum(not is_shard(p) for p in split.parameters()),
        "tied": plain.get_output_embeddings().weight is plain.get_input_embeddings().weight,
    }


def compare(report: Path, models: Iterable[str]) -> None:
    """One rank of several. Writes REPORT-RANK.json: for each model the largest differences of
    hidden states and head weights, and the number of unsharded parameters."""
    dist.init_process_group("gloo")
    differences = {path: compare_sharded(path) for path in models}
    Path(f"{report}-{os.environ['RANK']}.json").write_text(json.dumps(differences))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def runs(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the results `one`, by this process, and `ddp`, `fsdp`, `resumed`, by two."""
    root = tmp_path_factory.mktemp("runs")
    model, small = pair("qwen3_5_text")
    tiny.write_text(root / "words.jsonl", 2000)
    st.recover(small, out=root / "one", **recovery_runs.options(str(model.path), root))
    run_as_ranks(lambda: recovery_runs.recoveries(str(model.path), small, root))
    return root


def losses(run: Path) -> torch.Tensor:
    curve = json.loads((run / "statetrim" / "recover.json").read_text())["curve"]
    assert [line["step"] for line in curve] == list(range(1, recovery_runs.STEPS + 1))
    names = ("loss", "ce", "kl", "text_ce", "text_kl", "recall_ce", "recall_kl")
    return torch.tensor([[line[name] for name in names] for line in curve])


@pytest.mark.parametrize("run", ["ddp", "fsdp", "resumed"])
def test_the_curve_is_that_of_one_process(run: str, runs: Path) -> None:
    """Within 1e-4: sums over two halves of a batch differ from one sum in the last digits."""
    torch.testing.assert_close(losses(runs / run), losses(runs / "one"), rtol=0, atol=1e-4)
    for file in sorted((runs / "one").glob("*.safetensors")):
        tensors, expected = load_file(runs / run / file.name), load_file(file)
        for name, value in expected.items():
            torch.testing.assert_close(tensors[name], value, rtol=1e-3, atol=1e-3)


def test_models_and_optimizer_are_really_sharded(runs: Path) -> None:
    for rank in (0, 1):
        counts = json.loads((runs / f"counts-{rank}.json").read_text())
        assert counts["world"] == 2
        for name in ("student", "teacher", "adam"):
            tensors, shards, local, everything = counts[name]
            assert tensors == shards > 0, f"every tensor of {name} is a shard"
            # A tensor with a single row stays with one process.
            assert 0.3 * everything < local < 0.7 * everything, counts[name]


def test_no_process_holds_more_than_a_layer_while_models_are_read(
    runs: Path, checkpoint: Any
) -> None:
    """Or embeddings, final norm and head, which are read last."""
    sizes: dict[str, int] = {}
    for name, (_, tensor) in st.open(checkpoint("qwen3_5_text")).tensors.items():
        layer = re.search(r"layers\.(\d+)\.", name)
        group = layer.group(1) if layer else "rest"
        sizes[group] = sizes.get(group, 0) + math.prod(tensor.shape)
    for rank in (0, 1):
        unsharded = json.loads((runs / f"counts-{rank}.json").read_text())["whole"]
        assert 0 < unsharded <= max(sizes.values()) < sum(sizes.values()) / 2


def test_models_of_every_family_are_split_as_they_are_read(tmp_path: Path, checkpoint: Any) -> None:
    """Hidden states and head equal those of the unsharded model, with tied embeddings or not."""
    models = {model_type: str(checkpoint(model_type)) for model_type in tiny.MODEL_TYPES}
    run_as_ranks(lambda: compare(tmp_path / "report", models.values()))
    for rank in (0, 1):
        report = json.loads((tmp_path / f"report-{rank}.json").read_text())
        assert len(report) == len(models)
        for path, errors in report.items():
            assert errors["hidden"] < 1e-5 and errors["head"] == 0 and errors["whole"] == 0, path
        assert {errors["tied"] for errors in report.values()} == {True, False}


@pytest.fixture(scope="module")
def place(checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MODEL, its pruned SMALL, and a text."""
    root = tmp_path_factory.mktemp("recovery")
    model = st.open(shutil.copytree(checkpoint("delta_net"), root / "MODEL"))
    st.prune(model, st.select(model, "l1", "6x100%"), out=root / "SMALL")
    tiny.write_text(root / "words.jsonl", 4000)
    return root


def command(place: Path, out: Path, *extra: str) -> list[str]:
    options = "--tokens 1536 --length 32 --batch-size 4 --learning-rate 1e-2 --save-every 2"
    words = ["recover", "SMALL", "--teacher", "MODEL", "--text", "words.jsonl"]
    words = [str(place / word) if (place / word).exists() else word for word in words]
    return [*words, *options.split(), "--recall", "0.5", "-o", str(out), *extra]


def test_an_interrupted_run_is_not_resumed_by_another(
    place: Path, tmp_path: Path, warm_forker: Forker
) -> None:
    """Nor from a state that was damaged."""
    out, training = tmp_path / "out", tmp_path / "out.partial" / "training"
    state = training / "checkpoint-2"
    assert warm_forker.run(command(place, out), kill_when=state)["code"] == -9
    before = fingerprint(tmp_path)
    for change in (["--rank", "8"], ["--learning-rate", "3e-3"], ["--seed", "1"], ["--skip", "9"]):
        result = warm_forker.run(command(place, out, *change))
        check_refusal(result["code"], last_line(result["err"]), result["out"], "another job")
        assert fingerprint(tmp_path) == before
    last = max(training.glob("checkpoint-?"))
    (last / "training.safetensors").write_bytes(b"\x80\x04pickle")
    result = warm_forker.run(command(place, out))
    check_refusal(result["code"], last_line(result["err"]), result["out"], "cannot be read")


def test_a_result_of_another_run_is_left_alone(
    place: Path, tmp_path: Path, warm_forker: Forker
) -> None:
    out = tmp_path / "out"
    result = warm_forker.run(command(place, out, "--json"))
    assert result["code"] == 0, result["err"]
    output = json.loads(result["out"])
    assert output["output"] == str(out) and len(output["curve"]) == 12
    assert "training 10 projections and 6 convolutions of 2" in result["err"]
    before = fingerprint(tmp_path)
    result = warm_forker.run(command(place, out, "--rank", "8"))
    check_refusal(result["code"], last_line(result["err"]), result["out"], "exists already")
    assert warm_forker.run(command(place, out))["code"] == 0, "the same run again changes nothing"
    assert fingerprint(tmp_path) == before


def last_line(text: str) -> str:
    return text.splitlines()[-1] + "\n"
