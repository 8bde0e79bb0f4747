"""A method with a statistic of its own is one file, from calibration to the plan."""

from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers.refusal import run_successfully
from statetrim.artifacts.statistics import Statistics
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.kernel_hooks import KernelCall, hook_kernels
from statetrim.runtime.loading import load_live

FILE = '''
"""loudest_key: keep the channels whose keys are largest once."""

from statetrim import Statistic, needs, top
from statetrim.runtime.kernel_hooks import KernelCall


def fourth_powers(call, model):
    return call.key.flatten(0, 1).double().pow(4).sum(0)


KEY_FOURTH = Statistic("key_fourth", "key_heads keys", KernelCall, fourth_powers)


@needs(KEY_FOURTH)
def select(evidence, keep):
    return top(evidence.statistic("key_fourth"), keep)
'''
SETTINGS: Any = {"tokens": 96, "length": 24, "batch_size": 2, "progress": False}


def test_one_file_is_calibrated_and_selects(checkpoint: Any, text: Path, tmp_path: Path) -> None:
    """By the command line, against the kernel's own keys."""
    method, sums, out = (tmp_path / name for name in ("loudest_key.py", "sums", "plan.json"))
    method.write_text(FILE)
    model = st.open(checkpoint("qwen3_5_text"))
    sizes = ["--tokens=96", "--length=24", "--recall=0"]
    source = ["calibrate", str(model.path), "--text", str(text), *sizes]
    run_successfully([*source, "--for", str(method), "-o", str(sums)])
    chosen = ["select", str(model.path), "--method", str(method), "--statistics", str(sums)]
    run_successfully([*chosen, "--to", "6x100%", "-o", str(out)])
    kept = st.Plan.load(out).axes["key"].kept
    keys: dict[int, torch.Tensor] = {}

    def record(call: KernelCall) -> None:
        keys[call.layer] = call.key.double()

    live = load_live(model)
    with torch.inference_mode(), hook_kernels(live, record):
        live.hidden_states(Corpus(text, model).read(tokens=96, length=24).ids.long())
    for layer, key in keys.items():
        expected = torch.einsum("bthc->hc", key**4)
        torch.testing.assert_close(
            Statistics.load(sums).layers[layer]["key_fourth"], expected, rtol=1e-4, atol=1e-12
        )
        assert kept[layer].tolist() == expected.topk(6).indices.sort().values.tolist()


def test_its_sources_are_weighted(checkpoint: Any, text: Path, tmp_path: Path) -> None:
    """By its size in each source, head by head; heads that go take their sums with them."""
    method = tmp_path / "loudest_key.py"
    method.write_text(FILE)
    model = st.open(checkpoint("delta_net"))
    methods = [str(method), "head_energy"]
    statistics = st.calibrate(model, text, methods=methods, recall=0.7, **SETTINGS)
    shares = statistics.shares
    assert len({*shares.values()}) == 2, "a plain mean would be another figure"
    plan = st.select(model, str(method), "6x100%", statistics=statistics)
    for layer, kept in plan.axes["key"].kept.items():
        parts = (statistics.sources[name][layer]["key_fourth"] for name in ("text", "recall"))
        text_part, recall_part = (part / part.sum(1, keepdim=True) for part in parts)
        mixed = shares["text"] * text_part + shares["recall"] * recall_part
        assert kept.tolist() == mixed.topk(6).indices.sort().values.tolist()
    both = st.select(
        model, methods, f"{model.geometry.num_v_heads // 2}heads:6x100%", statistics=statistics
    )
    for layer, kept in both.axes["key"].kept.items():
        assert {tuple(row) for row in kept.tolist()} <= {
            tuple(row) for row in plan.axes["key"].kept[layer].tolist()
        }


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"key_fourth"', '"key_gram"', "another statistic is called"),
        ("@needs(KEY_FOURTH)", '@needs("key_fifth")', "there is no statistic 'key_fifth'"),
        ('"key_heads keys"', '"key_heads values"', r"measures \[2, 12\].*shape"),
        ('"key_fourth"', '"tokens"', "cannot be the name"),
    ],
)
def test_a_wrong_definition_is_one_sentence(
    old: str, new: str, message: str, checkpoint: Any, text: Path, tmp_path: Path
) -> None:
    assert old in FILE
    (tmp_path / "wrong.py").write_text(FILE.replace(old, new))
    with pytest.raises(st.StatetrimError, match=message):
        st.calibrate(
            checkpoint("qwen3_5_text"), text, methods=[str(tmp_path / "wrong.py")], **SETTINGS
        )
