"""The choice of the runtime, and refusals of checkpoints that do not fit their config."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import statetrim as st
from helpers import tiny
from helpers.forker import Forker
from statetrim.families import families
from statetrim.runtime import loading
from statetrim.runtime.loading import choose_runtime

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU fla is chosen")


@pytest.mark.parametrize(
    ("model_type", "runtime"),
    [("delta_net", "portable"), ("kda", "portable"), ("mamba2", "transformers")],
)
def test_the_runtime_is_chosen_and_said(
    model_type: str, runtime: str, checkpoint: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="statetrim")
    live = st.load(checkpoint(model_type))
    assert live.statetrim_runtime.name == runtime
    assert f"{model_type} runs in {runtime}" in caplog.text
    package = "statetrim.portable" if runtime == "portable" else "transformers."
    assert type(live).__module__.startswith(package)
    ids = torch.randint(1, tiny.VOCABULARY, (1, 12))
    with torch.no_grad():
        assert live(input_ids=ids).logits.shape == (1, 12, tiny.VOCABULARY)


def test_models_that_only_fla_can_run_say_so() -> None:
    for model_type in ("comba", "gla", "gated_deltaproduct"):
        with pytest.raises(st.StatetrimError, match=f"{model_type} runs only in fla"):
            choose_runtime(families()[model_type], {"model_type": model_type})


@pytest.mark.parametrize(
    ("config", "dtype", "runtime"),
    [
        ({"model_type": "delta_net"}, torch.float32, "portable"),
        ({"model_type": "delta_net"}, torch.bfloat16, "fla"),
        ({"model_type": "delta_net", "attn": {"layers": [1]}}, torch.float32, "fla"),
        ({"model_type": "gated_deltaproduct"}, torch.float32, "fla"),
        ({"model_type": "gated_deltanet"}, torch.float32, "fla"),
    ],
)
def test_where_fla_runs_float32_goes_to_portable_if_its_kernel_takes_none(
    config: dict[str, Any], dtype: torch.dtype, runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fla's chunked delta rule and delta product assert that they are not given float32."""
    monkeypatch.setattr(loading, "is_fla_usable", lambda device=None: True)
    chosen = loading.choose_runtime(families()[config["model_type"]], config, dtype)
    assert chosen.name == runtime
    assert runtime == "fla" or chosen.reason == "fla's kernel takes no float32"


def test_what_only_fla_can_run_is_loaded_in_bfloat16(
    checkpoint: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Simulates a float32 model whose only runtime is fla; portable's class loads it."""
    caplog.set_level(logging.INFO, logger="statetrim")
    monkeypatch.setattr(loading, "is_fla_usable", lambda device=None: True)
    family = type(families()["delta_net"])
    monkeypatch.setattr(family, "runtimes", lambda self, config: ("fla",))
    monkeypatch.setattr(loading, "_register_model_types", lambda family, runtime: None)
    live = st.load(checkpoint("delta_net"))
    assert (live.statetrim_runtime.name, live.dtype) == ("fla", torch.bfloat16)
    assert "in bfloat16, though stored in float32" in caplog.text
    assert st.load(checkpoint("delta_net"), dtype=torch.float32).dtype == torch.float32


def test_a_missing_tensor_is_an_error_not_a_random_weight(checkpoint: Any, tmp_path: Path) -> None:
    source = checkpoint("delta_net")
    tensors = tiny.tensors(source)
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    with pytest.raises(st.StatetrimError, match=r"1 missing tensors, the first is model\.norm"):
        st.load(tmp_path)


def test_an_option_the_runtime_lacks_is_one_sentence(checkpoint: Any, tmp_path: Path) -> None:
    """An fla hybrid: portable has no softmax layers."""
    copy = shutil.copytree(checkpoint("delta_net"), tmp_path / "hybrid")
    tiny.edit_json(copy / "config.json", attn={"layers": [1], "num_heads": 4})
    with pytest.raises(st.StatetrimError, match="does not load in portable: attn: softmax layers"):
        st.load(copy)


@pytest.mark.skipif(not tiny.FLA_INSTALLED, reason="fla is an empty shell without triton")
def test_an_installed_fla_does_not_break_models_on_the_cpu(
    checkpoint: Any, tmp_path: Path, warm_forker: Forker
) -> None:
    """transformers would hand CPU tensors to fla's GPU kernels; and fla would replace mamba2."""
    code = """
import sys, torch, statetrim as st
for path in sys.argv[1:]:
    live = st.load(path)
    live(input_ids=torch.ones(1, 80, dtype=torch.long))
    assert type(live).__module__.startswith(("transformers.", "statetrim.")), type(live)
assert "fla" not in sys.modules
"""
    script = tmp_path / "script.py"
    script.write_text(code)
    paths = [str(checkpoint(name)) for name in ("qwen3_5_text", "mamba2", "gated_deltanet")]
    ended = warm_forker.run([str(script), *paths], script=True)
    assert ended["code"] == 0, ended["err"]
