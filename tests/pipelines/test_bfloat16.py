"""Every step runs on bfloat16 checkpoints, as on the hub, and keeps their dtype."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import statetrim as st
from helpers import tiny
from statetrim.runtime.loading import load_live
from statetrim.runtime.logits import LogitReader
from statetrim.storage.json_file import read_json, write_json

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths


def to_bfloat16(source: Path, target: Path) -> Path:
    """Copy a checkpoint with all tensors in bfloat16."""
    target.mkdir()
    for path in source.iterdir():
        if path.suffix == ".safetensors":
            tensors = {name: x.bfloat16() for name, x in load_file(path).items()}
            save_file(tensors, target / path.name, {"format": "pt"})
        elif path.is_file():
            (target / path.name).write_bytes(path.read_bytes())
    config = read_json(target / "config.json", 2**20)
    write_json(target / "config.json", config | {"dtype": "bfloat16"})
    return target


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "mamba2"])
def test_the_whole_chain_runs_in_bfloat16(
    model_type: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model = to_bfloat16(checkpoint(model_type), tmp_path / "model")
    tiny.write_text(tmp_path / "text.jsonl", 2**14)
    small = st.trim(
        model, to="50%x100%", text=tmp_path / "text.jsonl", out=tmp_path / "out", tokens=1024,
        length=64, limit=2, batch_size=2, refit=True, recover=1024, control=False,
    )  # fmt: skip
    stored = {tensor.dtype for _, tensor in small.tensors.values()}
    assert stored == {"BF16"}


@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2", "granitemoehybrid", "falcon_h1"])
def test_logits_at_chosen_places_are_the_models_own(
    model_type: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    live = load_live(to_bfloat16(checkpoint(model_type), tmp_path / "model"))
    ids, positions = torch.arange(24).unsqueeze(0), torch.tensor([3, 11, 23])
    with torch.inference_mode():
        all_logits = live.logits(ids)[:, positions].float()
        chosen_logits = LogitReader(live).forward(ids)(positions)
    # Tolerance: one bfloat16 step of the largest logit, as other shapes sum in another order.
    torch.testing.assert_close(
        chosen_logits, all_logits, rtol=0, atol=2**-7 * float(all_logits.abs().max())
    )
