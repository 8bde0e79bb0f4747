"""A file makes an engine: that of docs/add-an-engine.md, in a copy of the package."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from helpers import tiny
from helpers.doc_pages import ROOT, code
from statetrim.serving.engines import engines

PAGE = ROOT / "docs" / "add-an-engine.md"
PACKAGE = ROOT / "src" / "statetrim"
RUNTIMES = ("transformers", "fla")  # engines that are also names of runtimes
ASK = """
import contextlib, io, sys
from statetrim.commands import app

for line in sys.argv[1].splitlines():
    print("$", line)
    with contextlib.redirect_stderr(sys.stdout):
        app(line.split(), standalone_mode=False)
"""
COMMANDS = """\
inspect model
inspect model --to 64x64 --verbose
inspect model --to 64x64 --memory-gib 1 --engine abacus --verbose
inspect model --to 64x64 --memory-gib 1 --engine abacus --kv-dtype int4
trim model --to 0.5 --for abacus --text text.jsonl --tokens 512 --limit 2 --dry-run -o out
trim --help
"""


def test_one_file_and_its_rows_reach_every_command(tmp_path: Path) -> None:
    copy = tmp_path / "src" / "statetrim"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "serving" / "engines" / "abacus.py").write_text(*code(PAGE, "python"))
    table = copy / "serving" / "engines.json"
    matrix = json.loads(table.read_text())
    matrix["rows"].append(json.loads(*code(PAGE, "json")))
    table.write_text(json.dumps(matrix))
    wide = {"linear_key_head_dim": 128, "linear_value_head_dim": 128}
    tiny.build("qwen3_5_text", tmp_path / "model", **wide)
    tiny.write_text(tmp_path / "text.jsonl", 20_000)
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "src"), "COLUMNS": "300"}
    command = [sys.executable, "-W", "ignore", "-c", ASK, COMMANDS]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    listed, engine_table, counted, coded, trim, help_text = done.stdout.split("$ ")[1:]
    assert "Abacus" in listed, "of a shape that it serves or refuses"
    assert re.search(r"Abacus 1\.2[\s│]+(on: )?CPU", engine_table)
    assert "abacus serve SMALL   # Abacus; if memory is short: ABACUS_ROWS=4" in engine_table
    assert "by abacus" in counted and "--state bfloat16" in counted
    assert "not measured here" in counted
    counts = re.findall(r"state \(default\)[ │]+([\d,]+)", counted + coded)
    plain, in_int4 = (int(text.replace(",", "")) for text in counts)
    assert plain < in_int4, "int4 takes a quarter of auto"
    assert "of Abacus's cache" in trim and "64x128" in trim
    assert "80x96" not in trim, "80 keys are not a multiple of 32"
    assert "abacus" in help_text


def test_no_name_of_an_engine_is_compared_elsewhere() -> None:
    names = {name for engine in engines() for name in (engine.key, engine.name) if name}
    comparisons = []
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "engines":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Compare):
                continue
            operands = [node.left, *node.comparators]
            for operand in operands:
                operands += operand.elts if isinstance(operand, ast.Tuple | ast.List) else []
            text = ast.unparse(node)
            for operand in operands:
                name = operand.value if isinstance(operand, ast.Constant) else None
                if name in names and (name not in RUNTIMES or "engine" in text):
                    comparisons.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {text}")
    assert not comparisons
