"""Runs the commands of docs/, results/ and examples/ on tiny models and texts with the names that
the pages use.

A page's commands run in order in a folder of their own. Input files that no earlier command of the
page wrote are created on demand (`World.make`). `with_small_sizes` reduces the sizes.
"""

import shlex
import shutil
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from helpers import tiny
from helpers.cases import load_cases
from helpers.doc_pages import Block, blocks
from helpers.quantized import FORMATS, quantize_checkpoint
from helpers.tiny import Load
from statetrim.commands import app
from statetrim.maths.units import parse_token_count

PROGRAM: Any = typer.main.get_command(app)
WIDE = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}  # fmt: skip
"""Heads of 128 channels, so that the widths 96, 64 and 48 of the pages are valid."""

WORD_REPLACEMENTS = {"TEXT": "text.jsonl", "METHODS": "drrqr"}
"""Placeholders of the pages -> the words that replace them."""

VALUE_REPLACEMENTS = {
    ("--to", "16heads"): "1heads", ("--skip", "64k"): "256", ("--for", "mlx"): "transformers",
}  # fmt: skip
"""(option, value) -> a value that fits two heads, a state of 256 KiB, 32k tokens of text, and the
model type; tests/docs/test_tools.py checks the engines of examples/."""

SMALL_OPTIONS: dict[str, dict[str, str]] = load_cases("small-options")
"""Options that replace those of the page; the page's own values are parsed beforehand."""

HUB = (
    "Qwen/Qwen3.5-4B", "Qwen/Qwen3.5-27B", "Qwen/Qwen3.5-35B-A3B", "Qwen/Qwen3.5-397B-A17B",
    "Qwen/Qwen3-Next-80B-A3B-Instruct", "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "allenai/Olmo-Hybrid-7B", "m-a-p/1.3B-100B-GatedDeltaNet-pure",
)  # fmt: skip
"""Hub models of the pages; on the loopback hub all are the tiny model. Their own layouts are cut in
tests/pipelines/test_hub_layouts.py."""
QUANTIZED_HUB = "Qwen/Qwen3.5-27B-FP8"

_TEXTS = ("text.jsonl", "test.jsonl")
COMMAND_FOR_FILE = {
    "statistics.safetensors": "statetrim calibrate MODEL --text text.jsonl -o {}",
    "plan.json": "statetrim select MODEL --to 64x64 --statistics statistics.safetensors -o {}",
    **dict.fromkeys(("SMALL", "OUT"), "statetrim prune MODEL plan.json -o {}"),
    "scores.json": "statetrim evaluate SMALL --baseline MODEL --tasks mqar -o {}",
    "analysis.json": "statetrim analyze SMALL --baseline MODEL --text text.jsonl -o {}",
    "timings.json": "statetrim benchmark SMALL --baseline MODEL -o {}",
}  # fmt: skip


class NotReady(Exception):
    """A command cannot run as the page shows it."""


def has_all_arguments(words: list[str]) -> bool:
    """Whether a command has all required arguments; raises NotReady for options or values that the
    command refuses."""
    name, *arguments = words
    if name not in PROGRAM.commands:
        raise NotReady(f"there is no command {name!r}")
    try:
        context = PROGRAM.commands[name].make_context(name, [w for w in arguments if w != "..."])
        for option in ("tokens", "skip", "recover"):
            parse_token_count(context.params.get(option, 0))
    except Exception as error:  # click's own, under a name that depends on the version of typer
        if type(error).__name__ in ("MissingParameter", "BadOptionUsage"):
            return False
        raise NotReady(str(error)) from error
    return "..." not in arguments


def with_small_sizes(words: list[str]) -> list[str]:
    """The words of a command, with sizes reduced for a tiny model, and without --device-map, which
    is refused without GPUs (tests/runtime/test_devices.py has pretended ones)."""
    words = [*words]
    for index in range(len(words) - 1):
        option, value = words[index : index + 2]
        words[index + 1] = VALUE_REPLACEMENTS.get((option, value), value)
    if "--device-map" in words:
        index = words.index("--device-map")
        del words[index : index + 2]
    modes = [word for word in words if word in ("--memory", "--sensitivity")]
    command = " ".join([words[0], *modes])
    for option, value in SMALL_OPTIONS.get(command, {}).items():
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    if words[0] == "trim":
        words += [] if "--no-control" in words else ["--no-control"]
        words += [] if {"--text", "--recipe"} & set(words) else ["--text", "text.jsonl"]
    return words


@dataclass
class World:
    """The folder of one page. `outputs_by_key` has the outputs of commands that other pages ran on
    the same model and text, so that they run once."""

    folder: Path
    page: Path
    build: Load
    outputs_by_key: dict[str, Path]

    def prepare(self, command: str, line: int) -> tuple[list[str], str | None, str | None]:
        """Create the inputs of a command and remove its old outputs; returns its words, the value
        of -o, and the file to which its standard output goes."""
        words, redirected = _split(command)
        output = next((b for a, b in pairwise(words) if a in ("-o", "--output")), None)
        for word in words:
            if word != output:
                self.make(word, line)
        for old_output in (output, redirected):
            if old_output:  # written by an earlier command of the page
                self.remove(old_output)
        return words, output, redirected

    def run(self, command: str, line: int = 0, inline: bool = False) -> None:
        """Run a command of the page or of `COMMAND_FOR_FILE`; raises NotReady if it fails."""
        words, output, redirected = self.prepare(command, line)
        if not has_all_arguments(words):
            if inline:
                return  # its options exist; nothing to run
            raise NotReady("it lacks an argument or an option that it needs, or has '...'")
        words = with_small_sizes(words)
        self.make("text.jsonl", line)  # replaces the default text from the hub
        key = self.shared_key(words, output)
        if key in self.outputs_by_key and output:
            _copy(self.outputs_by_key[key], self.folder / output)
            return
        result = CliRunner().invoke(app, words)
        has_fail_rule = "--fail-if" in words and isinstance(result.exception, SystemExit)
        if result.exit_code and not (has_fail_rule and result.exit_code == 1):
            output_text = f"{result.output.strip()[-600:]}\n{result.exception}"
            raise NotReady(
                f"It failed, run as\n    {shlex.join(['statetrim', *words])}\n{output_text}"
            )
        if redirected:
            (self.folder / redirected).write_text(result.stdout)
        if key and output and (self.folder / output).exists():
            self.outputs_by_key[key] = self.folder.parent / f"kept-{len(self.outputs_by_key)}"
            # A later command of the page may overwrite the output.
            _copy(self.folder / output, self.outputs_by_key[key])

    def shared_key(self, words: list[str], output: str | None) -> str | None:
        """The command without its output, if it reads only the model and text; else None."""
        words = ["MODEL" if word in HUB else word for word in words if word != output]
        read = {word for word in words if (self.folder / word).exists()}
        return " ".join(words) if read <= {"MODEL", *_TEXTS} else None

    def remove(self, name: str) -> None:
        path = self.folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def make(self, name: str, line: int) -> None:
        """Create the file that a page calls `name`, if it is missing and known here."""
        path = self.folder / name
        if "/" in name or path.exists():
            return
        if name in COMMAND_FOR_FILE:
            self.run(COMMAND_FOR_FILE[name].format(name))
        elif name in _TEXTS:
            tiny.write_text(path, 2**15, seed=_TEXTS.index(name))
        elif name == "MODEL":
            path.symlink_to(self.build("qwen3_5_text"))
        elif name == "MODEL-FP8":
            quantize_checkpoint(self.build("qwen3_5_text"), path, FORMATS["fine-grained fp8"])
        elif name == "strange-7b":
            shutil.copytree(self.build("qwen3_5_text"), path)
            names: Any = {"model_type": "strange", "architectures": ["StrangeForCausalLM"]}
            tiny.edit_json(path / "config.json", **names)
        elif name == "DATA":
            (path / "gsm8k").mkdir(parents=True)
            for split in ("train", "test"):
                rows = '{"question": "w1 w2", "answer": "#### w3"}\n' * 8
                (path / "gsm8k" / f"{split}.jsonl").write_text(rows)
        elif path.suffix in (".py", ".yaml"):
            language = {".py": "python", ".yaml": "yaml"}[path.suffix]
            path.write_text(self.shown(language, line).text)

    def shown(self, language: str, line: int) -> Block:
        """The last block of the language before `line`, else the first one of the page."""
        shown_blocks = [block for block in blocks(self.page) if block.language == language]
        if not shown_blocks:
            raise NotReady(f"the page shows no {language} to put into it")
        earlier = [block for block in shown_blocks if block.line < line]
        return earlier[-1] if earlier else shown_blocks[0]


def _copy(source: Path, target: Path) -> None:
    (shutil.copytree if source.is_dir() else shutil.copy)(source, target)


def _split(command: str) -> tuple[list[str], str | None]:
    """The words after `statetrim`, and the file after `>` (or None)."""
    program, *words = [WORD_REPLACEMENTS.get(word, word) for word in shlex.split(command)]
    if program != "statetrim":
        raise NotReady(f"nothing here runs {program!r}")
    for sign in ("|", "&&", ";", "<"):
        if sign in words:
            raise NotReady(f"{sign!r} is not understood; give each command a line of its own")
    if ">" in words:
        index = words.index(">")
        return words[:index], words[index + 1]
    return words, None
