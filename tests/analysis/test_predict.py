"""The error that masking predicts equals that of a refitted cut on disk."""

from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from statetrim.analysis.predict import predict
from statetrim.artifacts.decision import Prediction
from statetrim.artifacts.statistics import LayerStatistics
from statetrim.defaults import REFIT_DAMPING
from statetrim.statistics.readouts import fit_projection, relative_error
from statetrim.storage.text import Sequences

TYPES = ["gated_deltanet", "qwen3_next", "mamba2"]


def drawn(seed: int, rows: int = 16) -> Sequences:
    ids = torch.randint(1, 60, (rows, 32), generator=torch.Generator().manual_seed(seed))
    return Sequences(ids, {"seed": seed})


@pytest.mark.parametrize("model_type", TYPES)
def test_prediction_equals_the_cut_on_disk(
    model_type: str, checkpoint: Any, tmp_path: Path
) -> None:
    model = st.open(checkpoint(model_type))
    half = model.geometry.head_k_dim // 2
    values = model.geometry.head_v_dim // 2
    plans = {
        "keys": st.select(model, "l1", f"{half}x100%"),
        "values": st.select(model, to=f"100%x{values}", method="readout_l1"),
        "both": st.select(model, "l1,readout_l1", f"{half}x{values}"),
        "heads": st.select(model, "rand", f"{model.geometry.num_v_heads // 2}heads"),
    }
    fitted = {"a": drawn(0), "b": drawn(1)}
    measured = {"a": drawn(2), "b": drawn(3)}
    prediction = predict(model, plans, fitted, measured, max_bytes=1)  # a layer at a time
    for name, plan in plans.items():
        small = st.prune(model, plan, tmp_path / name)
        sums = {n: st.calibrate(small, d, original=model) for n, d in fitted.items()}
        tests = {n: st.calibrate(small, d, original=model) for n, d in measured.items()}
        for layer in model.geometry.layers:
            gram: Any = 0
            target: Any = 0
            for source_statistics in sums.values():
                layer_sums = source_statistics.layers[layer]
                gram = gram + layer_sums["readout_moment"] / layer_sums["target_square"]
                target = target + layer_sums["target_moment"] / layer_sums["target_square"]
            # The norm's weight was multiplied into the projection of the cut, so its read-out
            # differs by a factor per channel, which the fit absorbs (except for the damping).
            moments = {"readout_moment": gram, "target_moment": target}
            weight = fit_projection(LayerStatistics(0, moments), REFIT_DAMPING)
            for source, test in tests.items():
                expected = relative_error(weight, test.layers[layer])
                assert prediction.errors[name][source][layer] == pytest.approx(expected, rel=1e-3)


def test_all_layers_at_once_give_the_same(checkpoint: Any) -> None:
    model = st.open(checkpoint("qwen3_next"))
    plans = {"half": st.select(model, "l1", "50%x100%")}
    layer_by_layer, all_at_once = (
        predict(model, plans, {"a": drawn(0)}, {"a": drawn(1)}, max_bytes=size)
        for size in (1, 2**40)
    )
    for layer, error in layer_by_layer.errors["half"]["a"].items():
        assert all_at_once.errors["half"]["a"][layer] == pytest.approx(error, rel=1e-9)


def test_more_channels_miss_less(checkpoint: Any, tmp_path: Path) -> None:
    model = st.open(checkpoint("delta_net"))
    widths = range(2, model.geometry.head_k_dim, 3)
    plans = {str(width): st.select(model, "l1", f"{width}x100%") for width in widths}
    prediction = predict(model, plans, {"a": drawn(0)}, {"a": drawn(1)})
    assert prediction.ranked == [str(width) for width in reversed(widths)]
    prediction.save(tmp_path / "prediction.json")
    assert Prediction.load(tmp_path / "prediction.json") == prediction
