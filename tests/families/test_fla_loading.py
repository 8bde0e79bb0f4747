"""Pruned checkpoints load in fla's own classes, which can be built without a GPU if triton can be
imported."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import fla_mixers, tiny
from helpers.fla_worker import CONFIGS, KEEP, KEEP_VALUES, NO_VALUES, run
from helpers.forker import Forker
from statetrim.cut.geometry import allowed_head_counts

pytestmark = pytest.mark.skipif(
    not tiny.FLA_INSTALLED, reason="fla is an empty shell without triton"
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, fla_forker: Forker) -> Path:
    directory = tmp_path_factory.mktemp("fla")
    run(fla_forker, "build", directory)
    return directory


def keeps(model_type: str) -> tuple[int, int | None]:
    """Keys and, unless the family refuses it, values."""
    return KEEP, None if model_type in NO_VALUES else KEEP_VALUES


@pytest.fixture(scope="module")
def loaded(original: Path, tmp_path_factory: pytest.TempPathFactory, fla_forker: Forker) -> Any:
    """The report of fla's own classes on every pruned checkpoint."""
    directory = tmp_path_factory.mktemp("fla-pruned")
    (directory / "original").symlink_to(original)
    for model_type in CONFIGS:
        model = st.open(original / model_type)
        assert len(model.shards) >= 2
        keys, values = keeps(model_type)
        plan = st.select(model, "rand", f"{keys}x{values or '100%'}", seed=5)
        st.prune(model, plan, directory / "cut" / model_type)
        if model_type in fla_mixers.HEADS_AND_CHANNELS:
            heads = allowed_head_counts(model.geometry)[-1]  # key heads go with their values
            plan = st.select(model, "rand", f"{heads}heads:{KEEP}x{KEEP_VALUES}", seed=5)
            st.prune(model, plan, directory / "heads" / model_type)
    return run(fla_forker, "load", directory)


@pytest.mark.parametrize("model_type", CONFIGS)
def test_fla_loads_a_pruned_checkpoint_with_no_key_mismatch(
    model_type: str, original: Path, loaded: Any
) -> None:
    before = st.open(original / model_type).geometry
    report = loaded[model_type]
    assert report["class"].startswith("fla.models."), report
    assert report["mismatches"] == {}
    keys, values = keeps(model_type)
    assert (report["head_k_dim"], report["head_v_dim"]) == (keys, values or before.head_v_dim)


@pytest.mark.parametrize(
    ("model_type", "cut"),
    [(t, "cut") for t in fla_mixers.TYPES] + [(t, "heads") for t in fla_mixers.HEADS_AND_CHANNELS],
)
def test_a_cut_mixer_equals_the_masked_one_and_decodes_as_it_prefills(
    model_type: str, cut: str, loaded: Any
) -> None:
    """fla's own mixer, on a CPU with naive recurrences; with `heads`, heads are cut too."""
    differences = loaded[model_type][cut]
    assert differences["sliced"] < 1e-4 and differences["sliced decoded"] < 1e-4, differences
    assert differences["decoded"] < 1e-4, differences
    assert differences["cut"] > 1e-2, "the cut must matter"


@pytest.mark.parametrize("model_type", CONFIGS)
def test_every_width_reads_back_from_the_edited_config(model_type: str, original: Path) -> None:
    model = st.open(original / model_type)
    for keep in range(1, model.geometry.head_k_dim):
        for keep_values in range(1, model.geometry.head_v_dim + 1):
            if model_type in NO_VALUES:
                keep_values = model.geometry.head_v_dim
            after = model.geometry.resized(keep, keep_values)
            assert model.family.geometry(model.family.resized(model.config, after)) == after


def test_softmax_layers_of_a_hybrid_are_left_alone(original: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    config = json.loads((original / "delta_net" / "config.json").read_text())
    config["attn"] = {"layers": [1], "num_heads": 4}
    softmax = {"q_proj", "k_proj", "v_proj", "o_proj"}
    linear = softmax | {"b_proj", "q_conv1d", "k_conv1d", "v_conv1d", "o_norm"}
    config["expand_v"] = 1.0
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes = {"conv1d": (48, 1, 4), "norm": (12,), "proj": (48, 48)}
    tensors = {
        f"model.layers.{layer}.attn.{name}.weight": torch.randn(shapes[name.split("_")[1]])
        for layer, names in ((0, linear), (1, softmax), (2, linear))
        for name in names
    }
    save_file(tensors, tmp_path / "model.safetensors")
    model = st.open(tmp_path)
    assert model.geometry.layers == (0, 2)
    st.prune(model, st.select(model, "l1", "6x100%"), tmp_path / "out")
    after = st.open(tmp_path / "out")
    assert after.tensors["model.layers.0.attn.q_proj.weight"][1].shape == (24, 48)
    kept = "model.layers.1.attn.q_proj.weight"
    assert torch.equal(after.tensor(kept), tensors[kept])


REGISTER_IN_TURN = """
from transformers import AutoConfig
from statetrim.families import families
from statetrim.runtime import loading

for name in ("fla", "portable", "fla"):
    loading._register_model_types(families()["delta_net"], loading.Runtime(name, ""))
    print(type(AutoConfig.for_model("delta_net")).__module__.partition(".")[0])
"""


def test_a_process_that_ran_portable_runs_fla_again(fla_forker: Forker, tmp_path: Path) -> None:
    script = tmp_path / "register.py"
    script.write_text(REGISTER_IN_TURN)
    result = fla_forker.run([str(script)], script=True)
    assert result["out"].split() == ["fla", "statetrim", "fla"], result["err"]
