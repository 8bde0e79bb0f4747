"""A rerun with another option gives what a fresh run gives, byte for byte, or is refused.

`just rerun-every-stage` compares every stage x every option.
"""

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch

import statetrim as st
from helpers import reruns, tiny
from helpers.refusal import check_refusal, run
from helpers.tiny import Load
from statetrim.families import family_from_file
from statetrim.pipelines import stage as stage_module
from statetrim.pipelines.demo import story
from statetrim.pipelines.job import Job, file_stamps
from statetrim.pipelines.options import TrimOptions
from statetrim.pipelines.stage import Observer, Stage
from statetrim.pipelines.trim import CHANGEABLE_OPTIONS

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its slow paths
CHANGEABLE = {*CHANGEABLE_OPTIONS, "device", "for_", *reruns.FILES}
"""Options that a rerun may change. With one shape, `for_` says nothing more than `to`."""


@pytest.fixture(scope="module")
def first_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[reruns.Reruns, dict[str, Path]]]:
    """A run that was interrupted before its result was published."""
    root = reruns.prepare(tmp_path_factory.mktemp("reruns"))
    quick = {"to": "6x100%", "control": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        run = reruns.Reruns(root, quick)
        yield run, {reruns.PUBLISHING: run.interrupted()[reruns.PUBLISHING]}


def test_every_option_has_another_value() -> None:
    assert set(reruns.SAMPLES) == {item.name for item in fields(TrimOptions)}


@pytest.mark.parametrize("option", ["recover", "method.py"])
def test_what_depends_on_a_change_is_made_again(option: str, first_run: Any) -> None:
    run, left = first_run
    assert list(run.compare(option, reruns.values(option)[0], left)) == ["equal"]


def test_another_job_is_refused(first_run: Any) -> None:
    run, left = first_run
    for option in set(reruns.EVERYTHING) - CHANGEABLE:
        for value in reruns.SAMPLES[option]:
            if run.options.get(option) != value:
                results = list(run.compare(option, value, left))
                assert results[0].startswith("refused"), (option, results)


def test_an_edited_method_or_family_is_not_the_finished_job(
    checkpoint: Load, tmp_path: Path
) -> None:
    path, text = checkpoint("delta_net"), "from statetrim.families.delta_net import FAMILY\n"
    method, family = tmp_path / "method.py", tmp_path / "family.py"
    records = []
    for number in range(3):
        method.write_text(reruns.METHOD.format(first=min(1, number)))
        family.write_text(text + "#" * max(0, number - 1))
        model = st.open(path, family=family_from_file(family))
        job = Job.from_options(model, TrimOptions(to="6x100%", method=str(method)))
        records.append(job.record)
    methods = [record["files"][f"--method {method}"] for record in records]
    assert methods[0] != methods[1] == methods[2]
    assert records[0]["source"] == records[1]["source"] != records[2]["source"]
    assert "tokenizer.json" in records[0]["files"]


def _write(path: Path, options: dict[str, Any], *inputs: Stage) -> Stage:
    """A stage whose artifact is a directory with two files, which hold its options."""

    def make(progress: Any) -> None:
        path.mkdir()
        for name in ("a", "b"):
            (path / name).write_text(str(options))

    return Stage(path, options, make, inputs)


def test_a_change_reaches_what_depends_on_it(tmp_path: Path) -> None:
    def result(first: int, second: int) -> Stage:
        options = {"n": second, "of": [Path("text"), torch.float32]}
        return _write(tmp_path / "two", options, _write(tmp_path / "one", {"n": first}))

    assert not result(1, 2).is_current
    result(1, 2).ensure(Observer())
    assert result(1, 2).is_current and not result(1, 3).is_current
    assert not result(4, 2).is_current, "its input is of another"
    result(4, 2).ensure(Observer())
    assert (tmp_path / "one" / "a").read_text() == "{'n': 4}"
    result(4, 2).inputs[0].discard()
    result(4, 2).ensure(Observer())
    assert not (tmp_path / "one").exists(), "an input of what is current is not needed"


def test_what_a_kill_left_of_a_directory_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove_a_part(path: Path) -> None:
        (path / "a").unlink()
        raise KeyboardInterrupt

    stage = _write(tmp_path / "one", {"n": 1})
    stage.ensure(Observer())
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(stage_module, "remove", remove_a_part)
        _write(tmp_path / "one", {"n": 2}).ensure(Observer())
    assert not stage.is_current
    stage.ensure(Observer())
    assert (tmp_path / "one" / "a").exists()


def test_an_adopted_artifact_replaces_one_of_another(tmp_path: Path) -> None:
    old, new = _write(tmp_path / "kept", {"n": 1}), _write(tmp_path / "kept", {"n": 2})
    old.ensure(Observer())
    other = _write(tmp_path / "other", {"n": 2})
    other.ensure(Observer())
    new.adopt(other)
    assert new.is_current and not other.artifact.exists()
    other.ensure(Observer())
    new.adopt(other)
    assert new.is_current and not other.artifact.exists()


def test_another_text_runs_the_commands_of_the_demo_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs: list[str] = []

    def command(words: list[str]) -> None:
        if "-o" in words:
            outputs.append(words[-1])
            Path(words[-1]).touch()
            if words[-1] == "HALF":
                raise KeyboardInterrupt

    for text in ("a text", "a text", "another text"):
        monkeypatch.setattr(
            story, "write_text", lambda path, seed, text=text: path.write_text(text)
        )
        with pytest.raises(KeyboardInterrupt):
            story.run(tmp_path / "demo", command, lambda line: None)
        outputs.append("")
        (tmp_path / "demo.partial" / "HALF").unlink()
    runs = " ".join(outputs).split("  ")
    everything = "analysis.json statistics.safetensors HALF.json HALF"
    assert " ".join(runs).split() == [*everything.split(), "HALF", *everything.split()]


def test_an_edit_of_any_file_of_a_directory_is_noticed(tmp_path: Path) -> None:
    """Below a link, and if size and time of modification stay the same; a dead link is no file."""
    folder, rows = tmp_path / "data", tmp_path / "elsewhere" / "rows.jsonl"
    rows.parent.mkdir()
    folder.mkdir()
    rows.write_text("one")
    (folder / "task").symlink_to(rows.parent)
    (rows.parent / "back").symlink_to(folder)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    before, status = file_stamps(folder), rows.stat()
    assert before == file_stamps(folder) and before[:2] == ["task/rows.jsonl", 3]
    rows.write_text("two")
    os.utime(rows, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file_stamps(folder) != before


def test_other_data_or_weights_are_not_the_finished_job(checkpoint: Load, tmp_path: Path) -> None:
    """Also if only an MLP changed, which plans do not depend on."""
    path, data = shutil.copytree(checkpoint("qwen3_5_text"), tmp_path / "model"), tmp_path / "data"
    data.mkdir()
    model, options = st.open(path), TrimOptions(to="6x4", text="owner/name", data=data)
    first = Job.from_options(model, options).record
    (data / "rows.jsonl").write_text("one")
    second = Job.from_options(model, options).record
    tiny.rewrite(path, next(name for name in model.tensors if "mlp" in name), lambda x: x + 1)
    assert first != second != Job.from_options(st.open(path), options).record


def test_a_failed_run_without_work_does_not_block_the_corrected_one(
    checkpoint: Load, tmp_path: Path
) -> None:
    class Interrupt(Observer):
        def on_start(self, stage: str) -> None:
            raise KeyboardInterrupt

    model, out = checkpoint("delta_net"), tmp_path / "out"
    with pytest.raises(st.StatetrimError):  # the default text is on the hub
        st.trim(model, to="6x100%", out=out)
    assert not list(tmp_path.iterdir())
    text = tiny.write_text(tmp_path / "text.jsonl", 2**13)
    options: dict[str, Any] = {"to": "6x100%", "text": text, "limit": 2, "out": out}
    with pytest.raises(KeyboardInterrupt):
        st.trim(model, tokens=1024, watch=Interrupt(), **options)
    assert [path.name for path in tmp_path.iterdir()] == ["text.jsonl"]


def test_a_short_text_names_the_tokens_that_fit(
    checkpoint: Load, text: Path, tmp_path: Path
) -> None:
    command = ["trim", str(checkpoint("delta_net")), "--to", "6x100%", "--text", str(text)]
    command += ["--limit", "2", "-o", str(tmp_path / "out"), "--dry-run", "--tokens"]
    code, err, out = run([*command, "64k"])
    check_refusal(code, err, out, "fewer than the 66560 asked for; take --tokens")
    (fits,) = re.findall(r"--tokens (\d+)", err)
    assert run([*command, fits])[0] is None
    check_refusal(*run([*command, str(int(fits) + 1)]), f"take --tokens {fits}")
    assert not list(tmp_path.iterdir())
