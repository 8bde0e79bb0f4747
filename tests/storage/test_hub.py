"""Opening models by hub id, from a local test server."""

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants
from huggingface_hub.errors import EntryNotFoundError

import statetrim as st
from helpers import tiny
from helpers.loopback_hub import LoopbackHub, serving, use_hub
from helpers.refusal import check_refusal, run
from helpers.tiny import Load
from statetrim.storage.checkpoint import open_checkpoint
from statetrim.storage.hub import HubModel, explain_hub_errors
from statetrim.storage.models import short_names
from statetrim.storage.space import NoSpace

REPO = "someone/tiny"


@pytest.fixture
def hub(checkpoint: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    """`someone/tiny` with files that must not be downloaded, and an older revision of it."""
    main = shutil.copytree(checkpoint("delta_net"), tmp_path / "hub" / REPO / "main")
    (main / "README.md").write_text("# Tiny\n")
    (main / "modeling_tiny.py").write_text("raise SystemExit\n")
    (main / "pytorch_model.bin").write_bytes(b"pickled")
    (main / "consolidated.safetensors").write_bytes(b"the same weights again")
    (main / "original").mkdir()
    (main / "original" / "model.safetensors").write_bytes(b"and again")
    old = shutil.copytree(checkpoint("delta_net"), tmp_path / "hub" / REPO / "v1")
    tiny.edit_json(old / "config.json", comment="old")
    with serving(tmp_path / "hub") as served:
        use_hub(monkeypatch, served.url, tmp_path / "cache")
        yield served


def weights(hub: LoopbackHub) -> set[str]:
    index = hub.root / REPO / "main" / "model.safetensors.index.json"
    return set(json.loads(index.read_text())["weight_map"].values())


def test_a_hub_id_is_downloaded_and_opened(hub: LoopbackHub, checkpoint: Load) -> None:
    model = open_checkpoint(REPO)
    assert model.digest == st.open(checkpoint("delta_net")).digest
    assert weights(hub) <= hub.downloaded_files() and len(weights(hub)) > 1
    assert {"tokenizer.json", "README.md", "config.json"} <= hub.downloaded_files()
    never = {"modeling_tiny.py", "pytorch_model.bin", "consolidated.safetensors"}
    assert not {name for name in hub.downloaded_files() if name in never or "/" in name}

    hub.requests.clear()
    again = open_checkpoint(REPO)
    assert again.path == model.path and not hub.downloaded_files(), "the cache is used"
    assert open_checkpoint(REPO, weights="headers").downloaded and not hub.downloaded_files()


def test_a_hub_model_is_called_by_its_id(
    hub: LoopbackHub, checkpoint: Load, tmp_path: Path
) -> None:
    model = open_checkpoint(REPO)
    assert model.name == REPO
    local_copy = open_checkpoint(shutil.copytree(checkpoint("delta_net"), tmp_path / "tiny"))
    assert short_names([model, local_copy]) == [REPO, "tiny"]

    small = st.prune(model, st.select(model, "l1", "6x100%"), tmp_path / "small")
    page = st.report(small, out=tmp_path / "report", baseline=REPO).read_text()
    assert f"<h1>{REPO}: state" in page


def test_inspect_fetches_the_config_alone(hub: LoopbackHub) -> None:
    report = st.inspect(REPO, to="6x100%")
    assert report.after is not None
    assert hub.downloaded_files() == {"config.json"}


def test_a_dry_run_fetches_headers_and_no_weights(
    hub: LoopbackHub, checkpoint: Load, tmp_path: Path
) -> None:
    text = tiny.write_text(tmp_path / "text.jsonl", 2**13)
    command = ["trim", REPO, "--to", "6x100%", "--text", str(text), "--tokens", "1k"]
    command += ["--limit", "2", "--dry-run", "--json", "-o", str(tmp_path / "out")]
    code, err, out = run(command)
    assert code is None, err
    index = "model.safetensors.index.json"
    assert hub.downloaded_files() == {"config.json", index} | weights(hub)
    ranges = [line.split()[2] for line in hub.requests if "GET model-" in line]
    assert len(ranges) == len(weights(hub)) and set(ranges) == {"bytes=0-100000"}
    kept = {path.name for path in (tmp_path / "cache").rglob("snapshots/*/*")}
    assert kept == {"config.json", index}, "no weights in the cache"
    local = str(checkpoint("delta_net"))
    from_hub = json.loads(out)
    from_disk = json.loads(run([local if word == REPO else word for word in command])[2])
    assert from_hub["download_bytes"] == 4 * st.open(local).parameters
    assert not from_disk["download_bytes"]
    assert [s["disk"] for s in from_hub["steps"]] == [s["disk"] for s in from_disk["steps"]]

    for words in (["--to", "6x100%,4x100%"], ["--to", "0.5"]):
        code, err, _ = run([*command[:2], *words, *command[4:]])
        assert code is None and "safetensors" not in "".join(kept - {index}), err
    assert len(st.estimate(REPO, to="6x100%", text=text)) == len(
        st.estimate(local, to="6x100%", text=text)
    )
    (tmp_path / "out").mkdir()
    check_refusal(*run(command), "exists already")


def test_headers_of_the_hub_are_not_trusted(hub: LoopbackHub) -> None:
    main = hub.root / REPO / "main"
    name = sorted(weights(hub))[0]
    intact = (main / name).read_bytes()
    for damaged, message in (
        (intact.replace(b'"shape":[', b'"shape":[9,', 1)[:-2], "gives .* bytes, which do not fit"),
        (b"\x00" * 7, "is not one of safetensors"),
        ((2**40).to_bytes(8, "little"), "is not one of safetensors"),
        ((2).to_bytes(8, "little") + b"[]", "is not one of safetensors"),
        ((7).to_bytes(8, "little") + b'{"a":1}', "is not one of safetensors"),
    ):
        (main / name).write_bytes(damaged)
        with pytest.raises(st.StatetrimError, match=message):
            open_checkpoint(REPO, weights="headers")


def test_a_revision_is_its_own_and_an_unknown_name_is_said(hub: LoopbackHub) -> None:
    assert open_checkpoint(f"{REPO}@v1").config["comment"] == "old"
    assert "comment" not in open_checkpoint(REPO).config
    commit = hub.commit(REPO, "v1")
    assert open_checkpoint(f"{REPO}@{commit}").config["comment"] == "old"
    with pytest.raises(st.StatetrimError, match="someone/tiny has no revision 'v2'"):
        open_checkpoint(f"{REPO}@v2")
    with pytest.raises(st.StatetrimError, match="someone/else is neither a directory here nor a"):
        open_checkpoint("someone/else")


@pytest.mark.filterwarnings("ignore")  # of huggingface_hub, about retries
def test_a_broken_download_resumes_where_it_stopped(
    hub: LoopbackHub, checkpoint: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = sorted(weights(hub))[0]
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    hub.broken_after[name] = 5000
    for _ in range(2):  # huggingface_hub may retry by itself
        try:
            model = open_checkpoint(REPO)
            break
        except st.StatetrimError as error:
            assert "what has arrived is kept" in str(error)
    assert model.digest == st.open(checkpoint("delta_net")).digest
    ranges = [line for line in hub.requests if line.startswith(f"GET {name}")]
    assert len(ranges) == 2 and ranges[1].split()[2].startswith("bytes=")
    assert int(ranges[1].split("=")[1].split("-")[0]) > 0


@pytest.mark.parametrize(
    ("status", "reason", "message"),
    [
        (401, "GatedRepo", "is gated: accept its terms at .*someone/tiny"),
        (403, "GatedRepo", "is gated: accept its terms at .*someone/tiny"),
        (418, "", "the hub answers 418 for someone/tiny"),
    ],
)
def test_a_refusal_says_what_to_do(
    status: int, reason: str, message: str, hub: LoopbackHub
) -> None:
    hub.refused[REPO] = status, reason
    for ask in (open_checkpoint, st.inspect):
        with pytest.raises(st.StatetrimError, match=message):
            ask(REPO)


def test_the_file_that_is_missing_is_named(hub: LoopbackHub) -> None:
    (hub.root / REPO / "v1" / "config.json").unlink()
    with pytest.raises(st.StatetrimError, match=f"{REPO} has no config.json, so it cannot"):
        st.inspect(f"{REPO}@v1")
    error = EntryNotFoundError("404")
    error.response = SimpleNamespace(url="https://hub/a/b/x.json?c=1")  # type: ignore[attr-defined]
    with pytest.raises(st.StatetrimError, match=r"^a/b has no x\.json$"), explain_hub_errors("a/b"):
        raise error


def test_without_a_hub_the_cache_is_used(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = open_checkpoint(REPO)
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    assert open_checkpoint(REPO).path == model.path
    with pytest.raises(st.StatetrimError, match=r"nor in the local hub cache, and the hub cannot"):
        open_checkpoint("someone/else")


def test_offline_means_the_cache_alone(hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    st.inspect(REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    st.inspect(REPO)
    with pytest.raises(st.StatetrimError, match=r"not in the local hub cache.*HF_HUB_OFFLINE"):
        open_checkpoint(REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    model = open_checkpoint(REPO)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    hub.requests.clear()
    assert open_checkpoint(REPO).path == model.path and not hub.requests
    with pytest.raises(st.StatetrimError, match="local hub cache, and HF_HUB_OFFLINE is set"):
        open_checkpoint("someone/else")


def test_a_disk_that_is_too_small_is_known_before(
    hub: LoopbackHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")._replace(free=10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    message = r"needs .* and the disk of the hub cache has 9.8 KiB"
    with pytest.raises(NoSpace, match=message) as error:
        open_checkpoint(REPO)
    assert error.value.errno == errno.ENOSPC
    assert not weights(hub) & hub.downloaded_files()


def test_what_cannot_be_cut_is_not_downloaded(hub: LoopbackHub) -> None:
    (hub.root / REPO / "v1" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(st.StatetrimError, match="model type 'llama' is not supported"):
        st.select(f"{REPO}@v1", "l1", "50%x100%")
    assert hub.downloaded_files() == {"config.json"}


def test_a_repository_without_safetensors_is_refused(hub: LoopbackHub) -> None:
    for file in (hub.root / REPO / "main").glob("model*.safetensors*"):
        file.unlink()
    with pytest.raises(st.StatetrimError, match="only safetensors weights can be cut"):
        open_checkpoint(REPO)
    assert hub.downloaded_files() == {"config.json"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen3.5-4B", HubModel("Qwen/Qwen3.5-4B")),
        ("Qwen/Qwen3.5-4B@refs/pr/1", HubModel("Qwen/Qwen3.5-4B", "refs/pr/1")),
        ("./Qwen", None), ("../Qwen/x", None), ("a/b/c", None), ("/a/b", None), ("a/..", None),
        ("a/b@", None), ("a/b@../x", None), ("a/b@-x", None), ("a\n/b", None),
    ],
)  # fmt: skip
def test_what_is_a_hub_id(text: str, expected: HubModel | None) -> None:
    assert HubModel.parse(text) == expected


def test_an_index_of_nonsense_in_the_cache_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": ["b"]}}')
    monkeypatch.setattr(HubModel, "_cached", lambda self, name, revision: tmp_path / name)
    with pytest.raises(st.StatetrimError, match="not in the local hub cache"):
        HubModel("someone/model").download()
