"""Answer a request with the class `Engine` of a DRIVER; `__init__.py` documents the files.

An engine is made of the request. `encode` takes all texts, `most_likely` gives for each sequence
the choices and their log-probabilities, and `generate` a continuation of each prompt.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path


def main(request_file: str, answer_file: str, name: str) -> None:
    request = json.loads(Path(request_file).read_text())
    engine = importlib.import_module(name).Engine(request)
    read = list(engine.most_likely(request["sequences"]))
    answer = {
        "engine": engine.version,
        "encoded": engine.encode(request["texts"]),
        "choices": [choices for choices, _ in read],
        "log_probabilities": [log_probabilities for _, log_probabilities in read],
        "continuations": list(engine.generate(request["prompts"], request["generate"])),
    }
    Path(answer_file).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
