"""Recovery never changes what another run left; kills are in tests/test_adversary.py."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import statetrim as st
from helpers import tiny
from helpers.forker import Forker
from helpers.refusal import check_refusal, fingerprint


@pytest.fixture(scope="module")
def place(checkpoint: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MODEL, its pruned SMALL, and a text."""
    root = tmp_path_factory.mktemp("recovery")
    model = st.open(shutil.copytree(checkpoint("delta_net"), root / "MODEL"))
    st.prune(model, st.select(model, "l1", "6x100%"), out=root / "SMALL")
    tiny.write_text(root / "words.jsonl", 4000)
    return root


def command(place: Path, out: Path, *extra: str) -> list[str]:
    options = "--tokens 1536 --length 32 --batch-size 4 --learning-rate 1e-2 --save-every 2"
    words = ["recover", "SMALL", "--teacher", "MODEL", "--text", "words.jsonl"]
    words = [str(place / word) if (place / word).exists() else word for word in words]
    return [*words, *options.split(), "--recall", "0.5", "-o", str(out), *extra]


def test_an_interrupted_run_is_not_resumed_by_another(
    place: Path, tmp_path: Path, warm_forker: Forker
) -> None:
    """Nor from a state that was damaged."""
    out, training = tmp_path / "out", tmp_path / "out.partial" / "training"
    state = training / "checkpoint-2"
    assert warm_forker.run(command(place, out), kill_when=state)["code"] == -9
    before = fingerprint(tmp_path)
    for change in (["--rank", "8"], ["--learning-rate", "3e-3"], ["--seed", "1"], ["--skip", "9"]):
        result = warm_forker.run(command(place, out, *change))
        check_refusal(result["code"], last_line(result["err"]), result["out"], "another job")
        assert fingerprint(tmp_path) == before
    last = max(training.glob("checkpoint-?"))
    (last / "training.safetensors").write_bytes(b"\x80\x04pickle")
    result = warm_forker.run(command(place, out))
    check_refusal(result["code"], last_line(result["err"]), result["out"], "cannot be read")


def test_a_result_of_another_run_is_left_alone(
    place: Path, tmp_path: Path, warm_forker: Forker
) -> None:
    out = tmp_path / "out"
    result = warm_forker.run(command(place, out, "--json"))
    assert result["code"] == 0, result["err"]
    output = json.loads(result["out"])
    assert output["output"] == str(out) and len(output["curve"]) == 12
    assert "training 10 projections and 6 convolutions of 2" in result["err"]
    before = fingerprint(tmp_path)
    result = warm_forker.run(command(place, out, "--rank", "8"))
    check_refusal(result["code"], last_line(result["err"]), result["out"], "exists already")
    assert warm_forker.run(command(place, out))["code"] == 0, "the same run again changes nothing"
    assert fingerprint(tmp_path) == before


def last_line(text: str) -> str:
    return text.splitlines()[-1] + "\n"
