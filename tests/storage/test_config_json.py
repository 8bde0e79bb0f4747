"""Infinity and NaN in config.json, as Python's json writes them and some models on the hub have."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import statetrim as st

Load = Callable[[str], Path]


@pytest.mark.parametrize("model_type", ["mamba2", "nemotron_h"])
def test_infinity_in_a_config_is_read_and_written_back(
    model_type: str, checkpoint: Load, tmp_path: Path
) -> None:
    source = shutil.copytree(checkpoint(model_type), tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    config |= {"time_step_limit": [0.0, math.inf], "lowest": -math.inf, "none": math.nan}
    (source / "config.json").write_text(json.dumps(config))

    model = st.open(source)
    assert model.config["time_step_limit"][1] == math.inf
    st.prune(model, st.select(model, "l1", "6x100%"), tmp_path / "out")
    written = (tmp_path / "out" / "config.json").read_text()
    assert '"lowest": -Infinity' in written and '"none": NaN' in written
    after = json.loads(written)
    assert after["time_step_limit"] == [0.0, math.inf] and after["lowest"] == -math.inf
    assert math.isnan(after["none"])
    assert st.open(tmp_path / "out").geometry.head_k_dim == 6
