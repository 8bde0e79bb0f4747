"""Commands on local files open no connection; an audit hook in the process watches for them."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from helpers import tiny

PROGRAM = """
import json, sys
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
        if not (event == "socket.connect" and isinstance(args[1], (str, bytes))):
            print("NETWORK", event, args, file=sys.stderr)
            import os; os._exit(99)
sys.addaudithook(hook)
from statetrim.commands import main
for command in json.loads(sys.argv[1]):
    sys.argv = ["statetrim", *command]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
"""


def test_local_files_ask_no_host(checkpoint: Any, tmp_path: Path) -> None:
    """Parquet is read by `datasets`, and the files of a task by lm-eval."""
    from datasets import Dataset

    model = checkpoint("delta_net")
    rows = tiny.write_text(tmp_path / "text.jsonl", 3000).read_text().splitlines()
    Dataset.from_list([json.loads(row) for row in rows]).to_parquet(tmp_path / "text.parquet")
    calibrate = ["calibrate", model, "--text", tmp_path / "text.parquet", "--tokens", "128"]
    calibrate += ["--length", "32", "--batch-size", "2", "-o", tmp_path / "out.safetensors"]
    (tmp_path / "wikitext").mkdir()
    (tmp_path / "wikitext" / "test.jsonl").write_text('{"page": "w1 w2 w3"}\n' * 2)
    copy = shutil.copytree(model, tmp_path / "copy")
    evaluate = ["evaluate", copy, "--baseline", model, "--tasks", "wikitext", "--limit", "2"]
    evaluate += ["--data", tmp_path, "-o", tmp_path / "scores.json"]
    commands = [[str(word) for word in words] for words in (calibrate, evaluate)]
    environment = {n: v for n, v in os.environ.items() if n not in ("HF_HUB_OFFLINE",)}
    environment |= {"HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "NETWORK" not in process.stderr and process.returncode == 0, process.stderr[-1500:]
    assert (tmp_path / "out.safetensors").exists() and (tmp_path / "scores.json").exists()
