"""Invalid values and files end in one error message on the command line."""

import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.table import Table
from safetensors.torch import load_file, save_file

import statetrim as st
from helpers import tiny
from helpers.refusal import check_refusal, run
from statetrim.progress.plain_console import PlainConsole
from statetrim.storage.text import documents

ESCAPE = "\x1b[2J\x1b]0;owned\x07"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(checkpoint: Any, tmp_path: Path) -> Path:
    """A folder with a model and a text."""
    shutil.copytree(checkpoint("delta_net"), tmp_path / "model")
    tiny.write_text(tmp_path / "text.jsonl", 3000)
    return tmp_path


def command(name: str, folder: Path, *more: str) -> list[str]:
    model, text = str(folder / "model"), ["--text", str(folder / "text.jsonl")]
    sizes = ["--tokens", "128", "--length", "32"]
    return {
        "calibrate": ["calibrate", model, *text, *sizes, "-o", str(folder / "o.safetensors")],
        "recover": ["recover", model, *text, *sizes, "-o", str(folder / "o")],
        "analyze": [
            "analyze", model, *text, *sizes, "--burn-in", "8", "-o", str(folder / "o.json"),
        ],
        "evaluate": [
            "evaluate", str(folder / "copy"), "--baseline", model, "--tasks", "mqar",
            "-o", str(folder / "o.json"),
        ],
        "trim": ["trim", model, "--keep", "8", *text, "-o", str(folder / "o")],
        "benchmark": [
            "benchmark", model, "--baseline", model, "--engine", "vllm", "-o", str(folder / "o"),
        ],
        "inspect": ["inspect", model],
    }[name] + list(more)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [
        ("calibrate", ["--batch-size", "0"], "--batch-size cannot be 0"),
        ("analyze", ["--batch-size", "0"], "--batch-size cannot be 0"),
        ("recover", ["--batch-size", "0"], "must be positive"),
        ("trim", ["--limit", "0"], "--limit cannot be 0"),
        ("recover", ["--batch-size", "4", "--rank", "100000000"], "larger than any matrix"),
        ("benchmark", ["--memory-gib", "inf"], "positive number of GiB"),
        ("benchmark", ["--memory-gib", "nan"], "positive number of GiB"),
        ("inspect", ["--memory-gib", "inf"], "positive number of GiB"),
        ("recover", ["--seed", "-1"], "--seed must be between"),
        ("calibrate", ["--seed", str(2**64)], "--seed must be between"),
        ("recover", ["--length", "0"], "--length cannot be 0"),
        ("calibrate", ["--device", "meta"], "--device is cpu, cuda"),
    ],
)
def test_a_value_that_means_nothing(name: str, more: list[str], message: str, folder: Path) -> None:
    check_refusal(*run(command(name, folder, *more)), message)


def spoil(model: Path, change: Callable[[torch.Tensor], Any]) -> str:
    """Change a projection of a mixer, and return its name."""
    path = sorted(model.glob("*.safetensors"))[0]
    tensors = load_file(path)
    name = next(name for name in sorted(tensors) if "q_proj" in name)
    change(tensors[name])
    save_file(tensors, path, metadata={"format": "pt"})
    return name


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("recover", ["--batch-size", "4"]),
        ("recover", ["--batch-size", "4", "--layerwise", "--teacher", "copy"]),
        ("evaluate", []),
        ("evaluate", ["--layerwise"]),
        ("analyze", []),
        ("analyze", ["--layerwise"]),
        ("calibrate", ["--layerwise"]),
    ],
)
def test_weights_that_are_no_numbers_are_named(
    name: str, more: list[str], value: float, folder: Path
) -> None:
    shutil.copytree(folder / "model", folder / "copy")
    spoilt = spoil(folder / "model", lambda tensor: tensor.view(-1)[-1].fill_(value))
    more = [str(folder / word) if word == "copy" else word for word in more]
    code, err, _ = run(command(name, folder, *more))
    assert code == 2 and f"NaN or infinity in '{spoilt}'" in err
    assert err.count("statetrim: ") == 1


def test_a_tokenizer_with_more_tokens_than_the_model(folder: Path) -> None:
    path = folder / "model" / "tokenizer.json"
    words = json.loads(path.read_text())
    words["model"]["vocab"]["w1"] = 9999
    path.write_text(json.dumps(words))
    for name, more in (("calibrate", []), ("analyze", []), ("recover", ["--batch-size", "4"])):
        code, err, _ = run(command(name, folder, *more))
        assert code == 2 and "token 9999" in err and err.count("statetrim: ") == 1


def test_half_a_surrogate_pair_and_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "text.jsonl"
    path.write_bytes(b'{"text": "a \\ud800 b"}\n{"text": "\xff c"}\n{"text": ""}\n')
    texts = list(documents(path))
    assert len(texts) == 3 and all(text.encode() is not None for text in texts)


@pytest.mark.parametrize("name", ["text.jsonl", "model/config.json", "model/tokenizer.json"])
def test_a_pipe_is_no_file(name: str, folder: Path) -> None:
    """Reading it would block until another process writes to it."""
    (folder / name).unlink()
    os.mkfifo(folder / name)
    code, err, _ = run(command("calibrate", folder))
    assert code == 2 and "leads out" not in err and err.count("statetrim: ") == 1


PIPES = {
    "select": ["select", "model", "--keep", "8", "--statistics", "pipe", "-o", "o"],
    "merge": ["merge", "pipe", "pipe", "-o", "o"],
    "refit": ["refit", "model", "--statistics", "pipe", "-o", "o"],
    "prune": ["prune", "model", "pipe", "-o", "o"],
    "report": ["report", "model", "pipe.json", "-o", "o"],
    "recipe": ["trim", "model", "--recipe", "pipe", "-o", "o"],
    "evaluate": ["evaluate", "copy", "--baseline", "model", "--tasks", "squad", "--data", ".",
                 "-o", "o"],
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_no_artifact(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shutil.copytree("model", "copy")
    Path("squad").mkdir()
    for pipe in ("pipe", "pipe.json", "squad/a.jsonl"):
        os.mkfifo(pipe)
    code, err, _ = run(PIPES[name])
    assert code == 2 and err.count("statetrim: ") == 1


def test_a_tokenizer_file_that_links_nowhere(folder: Path) -> None:
    """Without this file, another tokenizer might be used without notice."""
    (folder / "model" / "tokenizer_config.json").unlink()
    (folder / "model" / "tokenizer_config.json").symlink_to("gone.json")
    check_refusal(*run(command("calibrate", folder)), "tokenizer_config.json is missing")


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        ("wikitext", "wikitext-2-raw/wiki.test.raw", ""),
        ("squad", "squad/a.jsonl", '{"text": "", "value": "", "answers": [[5]]}'),
        ("piqa", "piqa/piqa_val.jsonl", '{"goal": 1, "sol1": [], "sol2": null, "label": "x"}'),
        ("piqa", "piqa/piqa_val.jsonl", '{"goal": "", "sol1": "", "sol2": "", "label": -9}'),
        ("hellaswag", "hellaswag/hellaswag_val.jsonl", '{"ctx_a": null}'),
    ],
)
def test_rows_of_a_task_that_mean_nothing(task: str, name: str, content: str, folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "copy")
    (folder / name).parent.mkdir()
    (folder / name).write_text(content + "\n")
    words = command("evaluate", folder, "--data", str(folder), "--limit", "2")
    words[words.index("mqar")] = task
    code, err, _ = run(words)
    assert code == 2 and err.count("statetrim: ") == 1 and "Traceback" not in err


@pytest.mark.parametrize(
    ("file", "field", "value", "message"),
    [
        ("config.json", "norm_eps", [], "does not run|does not load"),
        ("tokenizer_config.json", "model_max_length", "x", "no tokenizer that loads"),
    ],
)
def test_a_field_that_fails_only_when_it_is_used(
    file: str, field: str, value: Any, message: str, folder: Path
) -> None:
    path = folder / "model" / file
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}))
    code, err, _ = run(command("calibrate", folder))
    assert code == 2 and re.search(message, err) and err.count("statetrim: ") == 1


@pytest.mark.parametrize("line", ["seed: x", "limit: 1.5", "state: .nan", "length: [1, 2]"])
def test_a_recipe_with_a_value_of_another_kind(line: str, folder: Path) -> None:
    (folder / "recipe.yaml").write_text(f"model: model\n{line}\n")
    words = ["trim", "--recipe", str(folder / "recipe.yaml"), "-o", str(folder / "o")]
    check_refusal(*run(words), "must be a (whole )?number")


def test_a_token_beyond_any_vocabulary(folder: Path) -> None:
    path = folder / "model" / "tokenizer.json"
    words = json.loads(path.read_text())
    words["model"]["vocab"]["w1"] = 2**31
    path.write_text(json.dumps(words))
    check_refusal(*run(command("calibrate", folder)), "token 2147483648, which no model has")


def test_a_recipe_with_a_name_that_is_too_long(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(f"model: {'x' * 300}\n")
    words = ["trim", "--recipe", str(folder / "recipe.yaml"), "-o", str(folder / "o")]
    check_refusal(*run(words), "'model' is not a path: File name too long")


def test_memory_that_ran_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrim.runtime import live

    def out_of_memory(*args: Any) -> None:
        torch.empty(2**60)

    monkeypatch.setattr(live.LiveModel, "hidden_states", out_of_memory)
    code, err, _ = run(command("calibrate", folder))
    assert code == 1 and "memory ran out" in err and "Traceback" not in err
    monkeypatch.undo()
    assert run(command("calibrate", folder, "--batch-size", "2"))[0] is None


def test_a_stage_that_took_too_much_is_left_out_on_the_rerun(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from statetrim.pipelines import stages

    def trim(**changes: Any) -> Any:
        return st.trim(
            folder / "model", keep=8, text=folder / "text.jsonl", tokens=1024, tasks=("mqar",),
            limit=2, control=False, progress=False, out=folder / "out", **changes,
        )  # fmt: skip

    def full(*args: Any, **kwargs: Any) -> None:
        raise MemoryError

    monkeypatch.setattr(stages, "benchmark", full)
    with pytest.raises(MemoryError):
        trim()
    small = trim(benchmark=False)
    assert small.geometry.head_k_dim == 8
    with pytest.raises(st.StatetrimError, match="not overwritten"):
        trim(seed=1, benchmark=False)


def test_a_terminal_obeys_nothing_that_a_name_says(checkpoint: Any, tmp_path: Path) -> None:
    shown = io.StringIO()
    console, table = (
        PlainConsole(file=shown, force_terminal=True, markup=False),
        Table(title=ESCAPE),
    )
    table.add_column(ESCAPE)
    table.add_row(ESCAPE)
    console.print(table)
    console.print(f"name {ESCAPE}", style="red", highlight=False)
    assert not any(code in shown.getvalue() for code in ("\x1b[2J", "\x1b]0", "\x07"))
    model = shutil.copytree(checkpoint("delta_net"), tmp_path / f"model {ESCAPE}\nx: y")
    for arguments in (["inspect", str(model)], ["select", str(model), "--method", "l1", "--keep",
                      "8", "-o", str(tmp_path / f"plan{ESCAPE}.json")]):  # fmt: skip
        code, err, out = run(arguments)
        assert code is None
        assert all(line.isprintable() for line in (out + err).splitlines())
    small = st.prune(model, st.select(model, "l1", 8), tmp_path / "small")
    card = (small.path / "README.md").read_text()
    front = card.split("---")[1]
    assert "\x1b" not in card and "x: y" not in front


def test_the_family_file_is_said_to_be_run() -> None:
    _, _, out = run(["inspect", "--help"])
    assert "It is executed" in " ".join(out.split())
