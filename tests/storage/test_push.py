"""Uploading a cut to the hub, against a local test server."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import statetrim as st
from helpers.loopback_hub import LoopbackHub, serving, use_hub
from helpers.quantized import FORMATS, quantize_checkpoint

Load = Callable[[str], Path]
REPO = "someone/smaller"
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # within huggingface_hub


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopbackHub]:
    (tmp_path / "hub").mkdir()
    with serving(tmp_path / "hub") as served:
        use_hub(monkeypatch, served.url, tmp_path / "cache", token="hf_test")
        yield served


@pytest.fixture
def small(checkpoint: Load, tmp_path: Path) -> Path:
    """A cut with records that contain local paths and records that do not."""
    model = checkpoint("delta_net")
    st.prune(model, st.select(model, "l1", "6x100%"), tmp_path / "small")
    records = tmp_path / "small" / "statetrim"
    text = tmp_path / "text.jsonl"
    text.write_text("")
    (records / "trim.json").write_text(json.dumps({"recipe": {"text": str(text)}}))
    (records / "scores.json").write_text(json.dumps({"models": {"tiny": {"mqar": 0.5}}}))
    (records / "report").mkdir()
    (records / "report" / "report.html").write_text(f"<p>{tmp_path}</p>")
    (records / "notes.md").write_text("made by\n\n    statetrim prune ~/models/tiny\n")
    return tmp_path / "small"


def test_a_cut_is_pushed_whole_and_private(
    hub: LoopbackHub, small: Path, tmp_path: Path, checkpoint: Load
) -> None:
    pushed = st.push(small, REPO)
    assert hub.repos == {REPO: True} and pushed.private
    assert pushed.url == f"{hub.url}/{REPO}"
    stored = hub.pushed[REPO]
    assert set(stored) == set(pushed.files)
    for name, content in stored.items():
        assert content == (small / name).read_bytes(), name
        assert str(tmp_path).encode() not in content, name
    weights = {path.name for path in small.glob("*.safetensors")}
    assert weights | {"README.md", "config.json", "tokenizer.json"} <= set(stored)
    records = {name for name in stored if name.startswith("statetrim/")}
    assert records == {f"statetrim/{n}.json" for n in ("plan", "prune", "scores")}
    assert {Path(name).name for name in pushed.left_out} == {"trim.json", "report.html", "notes.md"}


def test_a_quantised_cut_is_pushed_with_what_was_quantised_again(
    hub: LoopbackHub, checkpoint: Load, tmp_path: Path
) -> None:
    model = quantize_checkpoint(
        checkpoint("qwen3_5_text"), tmp_path / "model", FORMATS["fine-grained fp8"]
    )
    cut = st.prune(model, st.select(model, "l1", "6x100%"), tmp_path / "cut")
    pushed = st.push(cut, REPO)
    assert pushed.quantized == f"{len(cut.quantized)} of FP8, a scale for 16 x 16"
    stored = hub.pushed[REPO]
    assert json.loads(stored["statetrim/prune.json"])["requantized"]
    assert "Quantised weights: " in stored["README.md"].decode()
    quantization = json.loads(stored["config.json"])["quantization_config"]
    assert quantization == json.loads((model / "config.json").read_text())["quantization_config"]


def test_what_was_pushed_opens_again(
    hub: LoopbackHub, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    st.push(small, REPO, public=True)
    assert hub.repos == {REPO: False}
    main = tmp_path / "again" / REPO / "main"
    for name, content in hub.pushed[REPO].items():
        (main / name).parent.mkdir(parents=True, exist_ok=True)
        (main / name).write_bytes(content)
    with serving(tmp_path / "again") as other:
        use_hub(monkeypatch, other.url, tmp_path / "other-cache")
        assert st.open(REPO).digest == st.open(small).digest


def test_a_public_repository_is_not_pushed_to_unasked(hub: LoopbackHub, small: Path) -> None:
    hub.repos[REPO] = False
    with pytest.raises(st.StatetrimError, match="is there already and is public; give --public"):
        st.push(small, REPO)
    assert not hub.pushed
    assert not st.push(small, REPO, public=True).private and hub.pushed
    hub.repos[REPO] = True  # a private one stays private, whatever is asked for
    assert st.push(small, REPO, public=True).private


@pytest.mark.parametrize("token", [None, "hf_test"])
def test_without_leave_to_write_it_says_so(
    token: str | None, hub: LoopbackHub, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token is None:
        monkeypatch.delenv("HF_TOKEN")
    else:
        hub.refused[REPO] = 403, ""
    with pytest.raises(st.StatetrimError, match="does not let you write to someone/smaller"):
        st.push(small, REPO)
    assert not hub.pushed


def test_offline_and_unreachable(
    hub: LoopbackHub, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(st.StatetrimError, match="HF_HUB_OFFLINE is set"):
        st.push(small, REPO)
    use_hub(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache", token="hf_test")
    with pytest.raises(st.StatetrimError, match="the hub cannot be reached; nothing was pushed"):
        st.push(small, REPO)


@pytest.mark.parametrize("repo", ["smaller", "a/b/c", "a/b@main", "../x", ""])
def test_what_is_no_repository(repo: str, small: Path) -> None:
    with pytest.raises(st.StatetrimError, match="is not a repository name; give OWNER/NAME"):
        st.push(small, repo)


def test_no_card_no_push(small: Path) -> None:
    (small / "README.md").unlink()
    with pytest.raises(st.StatetrimError, match=r"has no README\.md"):
        st.push(small, REPO)


def test_trim_and_push_from_the_command_line(
    checkpoint: Load, small: Path, tmp_path: Path, hub: LoopbackHub
) -> None:
    """The installed command, configured by environment variables; errors are one sentence."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1",
    }  # fmt: skip

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "statetrim", *arguments]
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )

    done = run("push", str(small), REPO)
    assert done.returncode == 0, done.stderr
    assert f"files are at {hub.url}/{REPO}; only you" in done.stdout
    assert "left out" in done.stderr and "trim.json" in done.stderr and REPO in hub.pushed
    (tmp_path / "x.jsonl").write_text("")
    missing = run("trim", "someone/else", "--to", "50%x100%", "--text", "x.jsonl", "-o", "out")
    assert missing.returncode == 2
    assert missing.stderr.startswith("statetrim: someone/else is neither a directory here nor")
    assert len(missing.stderr.splitlines()) == 1
