"""What the demo starts from: a small trained model of this package, and Python's own texts."""

import json
import random
import shutil
from importlib.resources import as_file, files
from pathlib import Path

from ...storage import json_file
from ...storage.atomic import atomic_write


def write_model(path: Path) -> None:
    """Write the demo's model, an ordinary checkpoint with its tokenizer, to the directory `path`.

    It is a Qwen3.5 of 589 thousand parameters: two linear layers with heads of 64x64, then one
    softmax layer. A token is an ASCII character. It was trained on English text and on recall of
    up to 32 pairs (`studies/train_tiny.py`, preset "demo").
    """
    with as_file(files(__package__) / "model") as stored, atomic_write(path) as target:
        shutil.copytree(stored, target, dirs_exist_ok=True)


def write_text(path: Path, seed: int = 0) -> None:
    """Write the documentation of Python's language, which `help` shows, to a JSON Lines file.

    `seed` orders its topics. No paragraph comes twice, so that a text to measure on holds nothing
    that was calibrated on.
    """
    from pydoc_data.topics import topics

    names, seen, lines = sorted(topics), set[str](), ""
    random.Random(seed).shuffle(names)
    for name in names:
        new = [text for text in dict.fromkeys(topics[name].split("\n\n")) if text not in seen]
        seen.update(new)
        if new:
            lines += json.dumps({"text": "\n\n".join(new)}) + "\n"
    json_file.write_text(path, lines)
