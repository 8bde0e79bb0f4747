"""Prompts that MLX-LM and llama.cpp save, coded here, restored, and continued by the engine.

    python tools/engines/coded_prompts.py ENGINES MODEL --text wiki.test.txt --work FOLDER

ENGINES holds the environments `mlx` and `llamacpp`, MODEL is a `qwen3_5_text` checkpoint. For each
prompt and tolerance: bytes of the engine's own file, of its states in float32 and coded, and the
number of tokens before the greedy continuation differs from that after the engine's own file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prompt_files
from safetensors.torch import load_file, save_file

import statetrim as st
from statetrim.runtime.corpus import Corpus
from statetrim.snapshots.stream import StateFile

FOLDER = Path(__file__).parent
TOLERANCES = (0.02, 0.05, 0.1)
CONVERT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ask_llamacpp import convert
converter = Path(sys.prefix) / "llama.cpp" / "convert_hf_to_gguf.py"
convert(Path(sys.argv[2]), Path(sys.argv[3]), "float32", converter)
"""


def published_layout(model: st.Checkpoint, out: Path) -> Path:
    """The text model inside the config of Qwen3.5 as published, which MLX-LM expects."""
    if not out.exists():
        out.mkdir(parents=True)
        config = {"model_type": "qwen3_5", "text_config": model.config}
        config["tie_word_embeddings"] = model.config.get("tie_word_embeddings", False)
        (out / "config.json").write_text(json.dumps(config))
        tensors = load_file(model.path / "model.safetensors")
        renamed = {
            name.replace("model.", "model.language_model.", 1): x for name, x in tensors.items()
        }
        save_file(renamed, out / "model.safetensors", {"format": "pt"})
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (out / name).write_bytes((model.path / name).read_bytes())
    return out


def gguf(model: st.Checkpoint, engines: Path, out: Path) -> Path:
    if not out.exists():
        drivers = Path(st.__file__).parent / "verification" / "drivers"
        python = engines / "llamacpp" / "bin" / "python"
        arguments = [str(drivers), str(model.path), str(out)]
        subprocess.run([python, "-c", CONVERT, *arguments], check=True, capture_output=True)
    return out


def compare(
    name: str,
    ask: Callable[[str, Path], list[int]],
    code: Callable[[Path, float], StateFile],
    restore: Callable[[StateFile, Path], None],
    work: Path,
) -> None:
    """Save a prompt with the engine, code and restore it, and continue from both."""
    own = work / f"{name}-own.safetensors"  # MLX-LM wants this ending
    expected = ask("save", own)
    assert ask("load", own) == expected, "the engine's own file changes its tokens"
    for tolerance in TOLERANCES:
        coded, restored = work / f"{name}-coded", work / f"{name}-restored.safetensors"
        code(own, tolerance).save(coded)
        stored = StateFile.load(coded)
        restore(stored, restored)
        tokens = ask("load", restored)
        equal = [a == b for a, b in zip(tokens, expected, strict=True)]
        same = (*equal, False).index(False)
        float32 = sum(4 * x.shape[0] * x.shape[1] * x.shape[2] for x in stored.coded.values())
        states = sum(x.nbytes for x in stored.coded.values())
        print(
            f"{name}, tolerance {tolerance}: file {own.stat().st_size:,} -> "
            f"{coded.stat().st_size:,} bytes, states {float32:,} -> {states:,} "
            f"({100 * states / float32:.1f} %), worst error {stored.header.worst_error:.4f}, "
            f"the first {same} of {len(expected)} tokens equal",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("engines", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    options = parser.parse_args()
    model, work = st.open(options.model), options.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    ids = Corpus(options.text, model).read(tokens=options.prompts * 201, length=201).ids
    scripts: dict[str, tuple[str, Path]] = {
        "mlx": ("in_mlx/prompt_cache.py", published_layout(model, work / "published")),
        "llamacpp": ("in_llamacpp/slot.py", gguf(model, options.engines, work / "model.gguf")),
    }
    codes: dict[str, Any] = {
        "mlx": prompt_files.code_mlx_cache,
        "llamacpp": prompt_files.code_llamacpp_slot,
    }
    restores: dict[str, Callable[[StateFile, Path], None]] = {
        "mlx": lambda stored, out: prompt_files.restore_mlx_cache(stored, model, out),
        "llamacpp": prompt_files.restore_llamacpp_slot,
    }
    prompt_file = work / "prompt.json"
    for engine, (script, weights) in scripts.items():
        python = options.engines / engine / "bin" / "python"
        for number, prompt in enumerate(ids.tolist()):
            prompt_file.write_text(json.dumps(prompt))

            def ask(action: str, file: Path) -> list[int]:
                words = [action, str(file), str(options.tokens), str(prompt_file)]
                command = [str(python), str(FOLDER / script), str(weights), *words]  # noqa: B023
                done = subprocess.run(command, check=True, capture_output=True, text=True)
                tokens: list[int] = json.loads(done.stdout.splitlines()[-1])["tokens"]
                return tokens

            def code(path: Path, tolerance: float) -> StateFile:
                coded: StateFile = codes[engine](path, model, tolerance)  # noqa: B023
                return coded

            compare(f"{engine}-{number}", ask, code, restores[engine], work)


if __name__ == "__main__":
    main()
