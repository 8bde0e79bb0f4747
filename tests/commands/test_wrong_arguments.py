"""Wrong arguments, and outputs that exist."""

from pathlib import Path
from typing import Any

from helpers.untrusted import ESCAPE, Cases, inspect, prune, replaced, select

CASES = Cases()
add = CASES.add


for to in (
    "0", "-1", "-8", "13x8", "12x8", "1000000000", "9" * 4000, "8" * 5000, "1e999", "1e-999", "nan",
    "-1e9", "inf", "-inf", "10**9", "1/0", "0/1", "-1/2", "3/2", "13/12", "12/12", "", " ", "0.0",
    "1.0", "1.5", "0x8", "8.", "0%x8", "101%x8", "99x", "8x8,", "0heads", "99heads", "0MiB", "½",
    "1e9MiB", "\uff18.\uff15", "eight", "8,", "8 8", "None", "1e", "1e0", "7=8x8", "0=8x8,0=4x4",
    "1" + "0" * 31, "1/" + "9" * 40, ESCAPE, "⑧", "8\n9",
):  # fmt: skip
    for command in (select, inspect):

        def keeping(root: Path, to: str = to, command: Any = command) -> list[str]:
            return select(root, to) if command is select else [*inspect(root), "--to", to]

        expected = "cannot keep|cannot read|keeping|the share|no linear attention|even with|no gain"
        add(f"{command.__name__} --to {to[:20]!r}", keeping, expected)
for option in ("score", "score=x", "score=[1]", "score={}", "score=NaN", "score=null", "=q",
               "a b=1",
               "seed=1", "to=4", "model=x", "method=x", "progress=1", "other=1", "__class__=1",
               "score=" + "[" * 100_000, "score=" + ESCAPE):  # fmt: skip
    expected_text = "an option is|score must be|has no option"
    add(f"--option {option[:30]!r}", lambda r, o=option: [*select(r), "--option", o], expected_text)
for method in ("", "L1", "../l1", "/etc/passwd", "absent.py", "l1.py", "os", "__init__", ESCAPE):
    add(f"--method {method!r}", lambda r, m=method: [*select(r), "--method", m], "no method")
for model in ("absent", "/absent/model", "~nobody-here/model", "a/b", "../absent", "a" * 5000,
              "a/" * 2000 + "b", "a/b/c", "https://huggingface.co/a/b", ESCAPE):  # fmt: skip
    add(f"model {model[:30]!r}", lambda r, m=model: ["inspect", m], "does not exist|neither a dir")
for family in ("absent.py", ".", "/etc/passwd"):
    add(f"--family {family}", lambda r, f=family: [*inspect(r), "--family", f], "FAMILY")


def only_a_config(root: Path) -> list[str]:
    config = str(root / "model" / "config.json")
    return ["select", config, "--to", "8x100%", "-o", str(root / "new")]


def empty_directory(root: Path) -> list[str]:
    (root / "empty").mkdir()
    return ["inspect", str(root / "empty")]


linked_output = replaced("../out", lambda path: path.symlink_to("nowhere"))
add("select from a config alone", only_a_config, "only safetensors weights")
add("OUT is an empty directory", replaced("../out", Path.mkdir), "exists already")
add("OUT is a dangling link", linked_output, "exists already")
add("OUT is the model", lambda r: [*prune(r)[:-1], str(r / "model")], "exists already")
add("an empty directory", empty_directory, r"config\.json is missing")


test_refused = CASES.refused()
