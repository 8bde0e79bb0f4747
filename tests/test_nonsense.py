"""Invalid values and files end in one error message on the command line."""

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.table import Table

import statetrim as st
from helpers import tiny
from helpers.cases import load_cases
from helpers.refusal import assert_refused, run
from statetrim.commands.plain_console import PlainConsole
from statetrim.storage.text import documents

ESCAPE = "\x1b[2J\x1b]0;owned\x07"
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def folder(checkpoint: Any, tmp_path: Path) -> Path:
    """A folder with a model and a text."""
    shutil.copytree(checkpoint("delta_net"), tmp_path / "model")
    tiny.write_text(tmp_path / "text.jsonl", 3000)
    return tmp_path


def command(name: str, folder: Path, more: str = "") -> list[str]:
    """A command on the model and the text, with options; MODEL, COPY, TEXT and OUT are in it."""
    text = "--text TEXT --tokens 128 --length 32"
    words = {
        "calibrate": f"calibrate MODEL {text} -o OUT.safetensors",
        "recover": f"recover MODEL {text} --batch-size 4 -o OUT",
        "analyze": f"analyze MODEL {text} --burn-in 8 -o OUT.json",
        "evaluate": "evaluate COPY --baseline MODEL --tasks mqar -o OUT.json",
        "trim": "trim MODEL --to 8x100% --text TEXT -o OUT",
        "inspect": "inspect MODEL",
    }[name]
    paths = {"MODEL": "model", "COPY": "copy", "TEXT": "text.jsonl", "OUT": "o"}
    for placeholder, path in paths.items():
        words = words.replace(placeholder, str(folder / path))
        more = more.replace(placeholder, str(folder / path))
    return [*words.split(), *more.split()]


def check_message(arguments: list[str], text: str = "") -> None:
    """The command is refused with one message that has the text; it may have shown progress."""
    code, err, _ = run(arguments)
    assert code == 2 and text in err and err.count("statetrim: ") == 1 and "Traceback" not in err


@pytest.mark.parametrize(("name", "more", "message"), load_cases("values"))
def test_a_value_that_means_nothing(name: str, more: str, message: str, folder: Path) -> None:
    assert_refused(command(name, folder, more), message)


@pytest.mark.parametrize(("name", "more", "value"), load_cases("weights"))
def test_weights_that_are_no_numbers_are_named(
    name: str, more: str, value: str, folder: Path
) -> None:
    """The last number of a projection of a mixer."""
    model = folder / "model"
    shutil.copytree(model, folder / "copy")
    spoilt = next(name for name in sorted(tiny.tensors(model)) if "q_proj" in name)
    tiny.rewrite(model, spoilt, lambda x: x.put(torch.tensor(x.numel() - 1), x.new([float(value)])))
    check_message(command(name, folder, more), f"NaN or infinity in '{spoilt}'")


@pytest.mark.parametrize(
    ("name", "token"), [("calibrate", 9999), ("analyze", 2**31), ("recover", 9999)]
)
def test_a_tokenizer_with_more_tokens_than_the_model(name: str, token: int, folder: Path) -> None:
    path = folder / "model" / "tokenizer.json"
    words = json.loads(path.read_text())
    words["model"]["vocab"]["w1"] = token
    path.write_text(json.dumps(words))
    check_message(command(name, folder), f"token {token}")


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
    check_message(command("calibrate", folder), "a pipe" if name == "text.jsonl" else "")


PIPES = {
    "select": ["select", "model", "--to", "8x100%", "--statistics", "pipe", "-o", "o"],
    "refit": ["refit", "model", "--statistics", "pipe", "-o", "o"],
    "prune": ["prune", "model", "pipe", "-o", "o"],
    "report": ["report", "cut", "pipe.json", "-o", "o"],
    "recipe": ["trim", "model", "--recipe", "pipe", "-o", "o"],
    "evaluate": ["evaluate", "copy", "--baseline", "model", "--tasks", "piqa", "--data", "rows",
                 "-o", "o"],
}  # fmt: skip


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_no_artifact(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    shutil.copytree("model", "copy")
    Path("rows/piqa").mkdir(parents=True)
    st.prune("model", st.select("model", "rand", to="8x100%"), "cut")
    for pipe in ("pipe", "pipe.json", "rows/piqa/validation.jsonl"):
        os.mkfifo(pipe)
    check_message(PIPES[name], "pipe" if name != "evaluate" else "validation.jsonl is not a file")


def test_a_model_that_reads_no_text(folder: Path) -> None:
    for path in (folder / "model").glob("tokenizer*"):
        path.unlink()
    assert_refused(command("calibrate", folder), "has no tokenizer, so it reads no text; add")


def test_a_tokenizer_file_that_links_nowhere(folder: Path) -> None:
    """Without this file, another tokenizer might be used without notice."""
    (folder / "model" / "tokenizer_config.json").unlink()
    (folder / "model" / "tokenizer_config.json").symlink_to("gone.json")
    assert_refused(command("calibrate", folder), "tokenizer_config.json is missing")


@pytest.mark.parametrize(("task", "name", "content"), load_cases("task-rows"))
def test_rows_of_a_task_that_mean_nothing(task: str, name: str, content: str, folder: Path) -> None:
    shutil.copytree(folder / "model", folder / "copy")
    (folder / "rows" / name).parent.mkdir(parents=True)
    (folder / "rows" / name).write_text(content + "\n")
    words = command("evaluate", folder, f"--data {folder / 'rows'} --limit 2")
    words[words.index("mqar")] = task
    check_message(words, task)


@pytest.mark.parametrize(
    ("file", "field", "value", "message"),
    [
        ("config.json", "norm_eps", [], "does not"),
        ("tokenizer_config.json", "model_max_length", "x", "no tokenizer that loads"),
    ],
)
def test_a_field_that_fails_only_when_it_is_used(
    file: str, field: str, value: Any, message: str, folder: Path
) -> None:
    tiny.edit_json(folder / "model" / file, **{field: value})
    check_message(command("calibrate", folder), message)


def test_memory_that_ran_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from statetrim.runtime import live

    def out_of_memory(*args: Any) -> None:
        torch.empty(2**60)

    monkeypatch.setattr(live.LiveModel, "hidden_states", out_of_memory)
    code, err, _ = run(command("calibrate", folder))
    assert code == 1 and "memory ran out" in err and "Traceback" not in err
    monkeypatch.undo()
    assert run(command("calibrate", folder, "--batch-size 2"))[0] is None


def test_a_terminal_obeys_nothing_that_a_name_says(checkpoint: Any, tmp_path: Path) -> None:
    shown = io.StringIO()
    console = PlainConsole(file=shown, force_terminal=True, markup=False)
    table = Table(title=ESCAPE)
    table.add_column(ESCAPE)
    table.add_row(ESCAPE)
    console.print(table)
    console.print(f"name {ESCAPE}", style="red", highlight=False)
    assert not any(code in shown.getvalue() for code in ("\x1b[2J", "\x1b]0", "\x07"))
    model = shutil.copytree(checkpoint("delta_net"), tmp_path / f"model {ESCAPE}\nx: y")
    for arguments in (["inspect", str(model)], ["select", str(model), "--method", "l1", "--to",
                      "8x100%", "-o", str(tmp_path / f"plan{ESCAPE}.json")]):  # fmt: skip
        code, err, out = run(arguments)
        assert code is None
        assert all(line.isprintable() for line in (out + err).splitlines())
    small = st.prune(model, st.select(model, "l1", "8x100%"), tmp_path / "small")
    card = (small.path / "README.md").read_text()
    front = card.split("---")[1]
    assert "\x1b" not in card and "x: y" not in front
