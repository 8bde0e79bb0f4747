"""GPU kernels inside transformers: stubs with their signatures, for all types that use them.

Stubs get the same arguments as transformers' own functions, so the statistics are equal.
"""

import ast
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

import statetrim as st
from helpers import kernel_stubs, tiny
from helpers.kernel_worker import TYPES, calibrated, stored_logits
from helpers.sums import assert_statistics_close
from helpers.tiny import Load

WORKER = Path(__file__).parents[1] / "helpers" / "kernel_worker.py"
QUICK = ("qwen3_next", "mamba2")


@pytest.mark.filterwarnings("ignore")  # of transformers, about its slow paths
@pytest.mark.parametrize(
    "model_types",
    [QUICK, pytest.param(tuple(sorted({*TYPES} - {*QUICK})), marks=pytest.mark.slow)],
    ids=["a sample", "the others"],
)
def test_calibrate_and_check_pass_with_the_real_signatures(
    model_types: tuple[str, ...], checkpoint: Load, tmp_path: Path
) -> None:
    result = subprocess.run(
        [sys.executable, WORKER, "stubs", tmp_path, *model_types],
        capture_output=True, text=True, env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    report = json.loads(result.stdout.splitlines()[-1])
    for model_type in model_types:
        result_of_type = report[model_type]
        mamba = st.open(checkpoint(model_type)).family.kernels[0].startswith("mamba2")
        scan = "mamba_chunk_scan_combined" if mamba else "chunk_gated_delta_rule"
        step = "selective_state_update" if mamba else "fused_recurrent_gated_delta_rule"
        called = {scan, step, "causal_conv1d_fn", "causal_conv1d_update"}
        assert called <= set(result_of_type["calls"])
        assert result_of_type["sliced"] < 1e-5
        stored = load_file(tmp_path / f"{model_type}-stored.safetensors")["logits"]
        expected = stored_logits(checkpoint(model_type))
        assert (stored - expected).abs().max() < 1e-2 * expected.abs().max(), "of bfloat16"
        reference = calibrated(checkpoint(model_type))
        with_stubs = st.Statistics.load(tmp_path / f"{model_type}.safetensors")
        assert_statistics_close(reference, with_stubs, 1e-3)  # layers below differ by rounding


@pytest.mark.skipif(not tiny.FLA_INSTALLED, reason="fla is not installed")
@pytest.mark.parametrize(
    ("file", "function"),
    [
        ("chunk.py", kernel_stubs.chunk_gated_delta_rule),
        ("fused_recurrent.py", kernel_stubs.fused_recurrent_gated_delta_rule),
    ],
)
def test_the_stand_ins_have_flas_signatures(file: str, function: Callable[..., object]) -> None:
    # Importing fla is blocked here, since that would change transformers.
    fla = next(folder for folder in (Path(p) / "fla" for p in sys.path) if folder.is_dir())
    tree = ast.parse((fla / "ops" / "gated_delta_rule" / file).read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    fla_arguments = functions[function.__name__].args
    stub_names = list(inspect.signature(function).parameters)[:-1]
    assert [arg.arg for arg in fla_arguments.args][: len(stub_names)] == stub_names
    assert fla_arguments.kwarg is not None
