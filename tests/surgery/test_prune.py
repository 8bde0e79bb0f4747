"""What pruning writes, byte for byte, and what it refuses."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import statetrim as st
from helpers import raw, tiny
from statetrim.artifacts.plan import AxisPlan
from statetrim.storage.safetensors_file import BLOCK_BYTES, TensorEdit, read_shard, rewrite_shard

MODEL_TYPE = "qwen3_next"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return raw.build(tmp_path / "model", MODEL_TYPE, shards=3)


def pruned(model: Path, out: Path, seed: int = 0) -> st.Plan:
    opened = st.open(model)
    plan = st.select(opened, "rand", "8x100%", seed=seed)
    st.prune(opened, plan, out)
    return plan


def contents(directory: Path) -> dict[str, tuple[dict[str, Any], bytes]]:
    return {name: (entry, data) for name, entry, data in raw.iter_tensors(directory)}


# --- the slicer on one file ----------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2", "gla"])
@pytest.mark.parametrize("masked", [False, True], ids=["no cuts", "all-true masks"])
def test_keep_all_returns_every_tensor_byte_for_byte(
    tmp_path: Path, model_type: str, masked: bool
) -> None:
    source = raw.build(tmp_path / "model", model_type)
    again = tmp_path / "again"
    again.mkdir()
    for path in sorted(source.glob("*.safetensors")):
        shard = read_shard(path)
        cuts = {
            tensor.name: TensorEdit({dim: torch.ones(size, dtype=torch.bool)})
            for tensor in shard.tensors
            for dim, size in enumerate(tensor.shape[:2])
            if masked
        }
        counted: list[int] = []
        with (again / path.name).open("wb") as target:
            rewrite_shard(shard, target, cuts, counted.append)
        # Progress counts the bytes of tensors without headers, as its total does.
        assert sum(counted) == sum(tensor.nbytes for tensor in shard.tensors)
    assert contents(again) == contents(source)
    assert len(contents(again)) > 2


def test_rows_and_columns_of_a_tensor_larger_than_a_block(tmp_path: Path) -> None:
    rows, columns = 3 * BLOCK_BYTES // 4096 + 5, 1024
    weight = torch.arange(rows * columns, dtype=torch.int32).reshape(rows, columns)
    path = tmp_path / "model.safetensors"
    raw.save(tmp_path / "m", {}, {"w": weight.view(torch.float32)}, shards=1)
    (tmp_path / "m" / "model.safetensors").rename(path)
    keep = {0: torch.rand(rows) < 0.5, 1: torch.rand(columns) < 0.5}
    target = tmp_path / "cut.safetensors"
    with target.open("wb") as file:
        rewrite_shard(read_shard(path), file, {"w": TensorEdit(keep)}, lambda count: None)
    header, data = raw.read(target)
    expected = weight.numpy()[keep[0].numpy()][:, keep[1].numpy()]
    assert header["w"]["shape"] == list(expected.shape)
    assert data == expected.tobytes()


def test_the_kernel_copy_has_a_substitute(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems and operating systems cannot copy inside the kernel."""
    pruned(model, tmp_path / "kernel")

    def unsupported(*_: Any, **__: Any) -> int:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "copy_file_range", unsupported)
    pruned(model, tmp_path / "python")
    monkeypatch.delattr(os, "copy_file_range")
    pruned(model, tmp_path / "elsewhere")
    assert contents(tmp_path / "kernel") == contents(tmp_path / "python")
    assert contents(tmp_path / "kernel") == contents(tmp_path / "elsewhere")


# --- checkpoints ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("model_type", ["qwen3_next", "mamba2", "gated_deltaproduct"])
def test_rows_are_picked_and_never_cast(
    tmp_path: Path, model_type: str, dtype: torch.dtype
) -> None:
    """Against numpy on the raw bytes: kept rows of pruned tensors, equal bytes elsewhere."""
    settings = raw.CONFIGS[model_type]
    source = raw.save(tmp_path / "m", settings, raw.tensors(settings, dtype), shards=2)
    plan = pruned(source, tmp_path / "out")
    opened = st.open(source)
    before, after = contents(source), contents(tmp_path / "out")
    assert before.keys() == after.keys()
    cut = 0
    for name, (entry, data) in before.items():
        layer_rows = opened.channel_rows.get(name)
        if layer_rows is None:
            assert after[name] == (entry, data)
            continue
        key_rows = [rows for rows in layer_rows.channel_rows if rows.axis == "key"]
        if not key_rows:
            assert after[name] == (entry, data), "values are not cut unasked"
            continue
        dropped: set[int] = set()
        for channel_rows in key_rows:
            for head, rows in enumerate(channel_rows.rows.tolist()):
                kept = set(plan.axes["key"].kept[layer_rows.layer][head].tolist())
                dropped |= {row for channel, row in enumerate(rows) if channel not in kept}
        survivors = [row for row in range(entry["shape"][0]) if row not in dropped]
        table = np.frombuffer(data, np.uint8).reshape(entry["shape"][0], -1)
        assert after[name][0]["dtype"] == entry["dtype"]
        assert after[name][0]["shape"] == [len(survivors), *entry["shape"][1:]]
        assert after[name][1] == table[survivors].tobytes()
        assert len(survivors) < entry["shape"][0]
        cut += 1
    assert cut >= 4


def test_one_shard_or_many_give_the_same_tensors(tmp_path: Path) -> None:
    settings = raw.CONFIGS[MODEL_TYPE]
    results = []
    for shards in (1, 2, 5):
        source = raw.save(tmp_path / f"{shards}", settings, raw.tensors(settings), shards)
        pruned(source, tmp_path / f"out{shards}")
        assert len(list((tmp_path / f"out{shards}").glob("*.safetensors"))) == shards
        results.append(contents(tmp_path / f"out{shards}"))
    assert results[0] == results[1] == results[2]


def test_index_counts_the_bytes_and_places_the_tensors(model: Path, tmp_path: Path) -> None:
    tiny.edit_json(
        model / raw.INDEX, metadata={"total_size": 1, "total_parameters": 1, "other": "stays"}
    )
    pruned(model, tmp_path / "out")
    index = json.loads((tmp_path / "out" / raw.INDEX).read_text())
    tensors = contents(tmp_path / "out")
    assert index["metadata"]["total_size"] == sum(len(data) for _, data in tensors.values())
    assert index["metadata"]["total_parameters"] == index["metadata"]["total_size"] // 4
    assert index["metadata"]["other"] == "stays"
    for name, file in index["weight_map"].items():
        assert name in raw.read(tmp_path / "out" / file)[0]
    assert set(index["weight_map"]) == set(tensors)


def test_files_next_to_the_weights_are_copied(model: Path, tmp_path: Path) -> None:
    copied = {
        "tokenizer.json": b'{"\xc3\xa9": 1}', "tokenizer_config.json": b"{}", "vocab.txt": b"a\r\n",
        "tokenizer.model": b"\0\1\2", "generation_config.json": b"{}", "LICENSE": b"Apache",
        "chat_template.jinja": b"{{ x }}", "preprocessor_config.json": b"{}", "merges.txt": b"",
        "additional_chat_templates/tools.jinja": b"{{ y }}",
    }  # fmt: skip
    left_out = {
        "pytorch_model.bin", "model.gguf", "tf_model.h5", "flax_model.msgpack", "other.safetensors",
        "consolidated.00.pth", "model.ONNX", "pytorch_model.bin.index.json", ".gitattributes",
        "statetrim",
    }  # fmt: skip
    (model / "additional_chat_templates").mkdir()
    for name, data in copied.items():
        (model / name).write_bytes(data)
    for name in left_out:
        (model / name).write_bytes(b"x")
    (model / "onnx").mkdir()
    (model / "onnx" / "model.onnx").write_bytes(b"x")
    pruned(model, tmp_path / "out")
    out = tmp_path / "out"
    assert {name: (out / name).read_bytes() for name in copied} == copied
    written = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    shards = {path.name for path in model.glob("model-*.safetensors")}
    own_files = {
        "config.json", "README.md", raw.INDEX, "statetrim/plan.json", "statetrim/prune.json",
    }  # fmt: skip
    assert written == set(copied) | shards | own_files


def test_the_card_keeps_the_licence_and_the_original(model: Path, tmp_path: Path) -> None:
    card = (
        b"---\r\nlicense: other\r\nlicense_name: some-license\r\ntags:\r\n- chat\r\n"
        b"model-index:\r\n- name: x\r\n---\r\n# Model\r\nna\xefve\r\n"
    )
    (model / "README.md").write_bytes(card)
    pruned(model, tmp_path / "out")
    new = (tmp_path / "out" / "README.md").read_text()
    front = new.split("---\n")[1].splitlines()
    assert front == ["license: other", "license_name: some-license", "tags:", "- statetrim",
                     "- pruned"]  # fmt: skip
    assert "12 x 8 -> 8 x 8" in new and "`rand`" in new and "source_README.md" in new
    assert (tmp_path / "out" / "statetrim" / "source_README.md").read_bytes() == card


def test_only_the_width_changes_in_the_config(model: Path, tmp_path: Path) -> None:
    tiny.edit_json(model / "config.json", unknown_field={"é": [1, None, 1.5]})
    pruned(model, tmp_path / "out")
    before = json.loads((model / "config.json").read_text())
    after = json.loads((tmp_path / "out" / "config.json").read_text())
    assert after == before | {"linear_key_head_dim": 8}


def test_a_hub_cache_opens_and_prunes(model: Path, tmp_path: Path) -> None:
    """Snapshots link to blobs outside of them, in the same repository."""
    (model / "tokenizer.json").write_text("{}")
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / "0123abc"
    (repository / "blobs").mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(model.iterdir())):
        shutil.copy(path, repository / "blobs" / str(number))
        os.symlink(f"../../blobs/{number}", snapshot / path.name)
    pruned(snapshot, tmp_path / "out")
    pruned(model, tmp_path / "plain")
    assert contents(tmp_path / "out") == contents(tmp_path / "plain")
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    card = (tmp_path / "out" / "README.md").read_text()
    assert "base_model: org/name" in card and "# org/name, state 12 x 8 -> " in card


# --- refusals ------------------------------------------------------------------------------------


def test_values_are_refused_with_the_reason_where_a_family_cannot_cut_them(tmp_path: Path) -> None:
    opened = st.open(raw.build(tmp_path / "kda", "kda"))
    plan = st.select(opened, "l1", "8x100%")
    values = AxisPlan(dict.fromkeys(plan.layers, torch.arange(4).repeat(4, 1)), "l1")
    both = replace(plan, axes={**plan.axes, "value": values})
    with pytest.raises(st.StatetrimError, match=r"values of kda cannot be cut: .*inner rank"):
        st.prune(opened, both, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["kda"]
    with pytest.raises(st.StatetrimError, match="inner rank"):
        st.select(opened, "l1", to="100%x4")
    with pytest.raises(st.StatetrimError, match="inner rank"):
        st.inspect(opened, to="100%x4")


def test_a_tensor_of_no_bytes_and_a_scalar_are_tensors_too(tmp_path: Path) -> None:
    header = {"empty": {"dtype": "F32", "shape": [0, 4], "data_offsets": [0, 0]},
              "scalar": {"dtype": "F64", "shape": [], "data_offsets": [0, 8]}}  # fmt: skip
    source, target = tmp_path / "edge.safetensors", tmp_path / "again.safetensors"
    raw.write(source, header, b"\1" * 8)
    with target.open("wb") as file:
        rewrite_shard(read_shard(source), file, {}, lambda count: None)
    rewritten = raw.read(target)
    assert rewritten == (header, b"\1" * 8)
