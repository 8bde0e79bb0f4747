"""Checkpoints as other tools write them: three concatenated convolutions split into equal thirds
(OLMo-Hybrid saved by transformers), and Infinity and NaN in config.json."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

import statetrim as st
from helpers import tiny
from helpers.tiny import Load
from statetrim.surgery.check import compare_cut


@pytest.fixture(scope="module")
def saved_again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build("olmo_hybrid", tmp_path_factory.mktemp("again") / "model", as_saved=True)


def test_it_reads_as_the_hubs_files_do(checkpoint: Load, saved_again: Path) -> None:
    hub, again = st.open(checkpoint("olmo_hybrid")), st.open(saved_again)
    rows = [
        [model.tensors[f"model.layers.0.linear_attn.{x}_conv1d.weight"][1].shape[0] for x in "qkv"]
        for model in (hub, again)
    ]
    assert rows == [[48, 48, 64], [54, 54, 52]], "otherwise nothing is tested"
    assert not hub.resplit_tensors and len(again.resplit_tensors) == 3 * len(again.geometry.layers)
    assert all(torch.equal(hub.tensor(name), again.tensor(name)) for name in hub.tensors)


@pytest.mark.parametrize("values", [None, 9], ids=["keys", "keys and values"])
def test_its_cut_is_that_of_the_hubs_files(
    values: int | None, checkpoint: Load, saved_again: Path, tmp_path: Path
) -> None:
    cut: list[st.Checkpoint] = []
    for name, path in (("hub", checkpoint("olmo_hybrid")), ("again", saved_again)):
        model = st.open(path)
        plan = st.select(model, "l1,readout_l1", f"7x{values or '100%'}")
        cut.append(st.prune(model, plan, tmp_path / name))
    hub, again = cut
    assert not again.resplit_tensors and set(hub.tensors) == set(again.tensors)
    for name, (_, tensor) in hub.tensors.items():
        assert tensor.shape == again.tensors[name][1].shape, name
        assert torch.equal(hub.tensor(name), again.tensor(name)), name
    assert compare_cut(st.open(saved_again), plan, again).sliced_against_masked < 1e-5


def test_a_third_of_another_size_is_refused(checkpoint: Load, tmp_path: Path) -> None:
    model = tiny.build("olmo_hybrid", tmp_path / "model", as_saved=True)
    tiny.rewrite(model, "model.layers.0.linear_attn.v_conv1d.weight", lambda x: x[:-1])
    with pytest.raises(st.StatetrimError, match="but its config implies 48 along dimension 0"):
        st.select(model, "l1", "6x100%")


@pytest.mark.parametrize("model_type", ["mamba2", "nemotron_h"])
def test_infinity_in_a_config_is_read_and_written_back(
    model_type: str, checkpoint: Load, tmp_path: Path
) -> None:
    source = shutil.copytree(checkpoint(model_type), tmp_path / "source")
    limits = {"time_step_limit": [0.0, math.inf], "lowest": -math.inf, "none": math.nan}
    tiny.edit_json(source / "config.json", **limits)
    model = st.open(source)
    assert model.config["time_step_limit"][1] == math.inf
    st.prune(model, st.select(model, "l1", "6x100%"), tmp_path / "out")
    written = (tmp_path / "out" / "config.json").read_text()
    assert '"lowest": -Infinity' in written and '"none": NaN' in written
    after = json.loads(written)
    assert after["time_step_limit"] == [0.0, math.inf] and after["lowest"] == -math.inf
    assert math.isnan(after["none"])
    assert st.open(tmp_path / "out").geometry.head_k_dim == 6
