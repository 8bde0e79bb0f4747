"""Damaged and hostile plan.json files are refused with an error message."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.untrusted import (
    BAD_JSON,
    ESCAPE,
    MIB,
    NOT_OBJECTS,
    Case,
    Cases,
    SoundCheckpoint,
    SpoilCheckpoint,
    check_refused_by_the_installed_command,
    edit_json,
    filled,
    heavy_file,
    refused_within_a_gigabyte,
    replaced,
)

CASES = Cases()
add = CASES.add


def plan(change: Callable[[dict[str, Any]], Any]) -> SpoilCheckpoint:
    return lambda root: edit_json(root / "plan.json", change)


def keys(change: Callable[[dict[str, Any]], Any]) -> SpoilCheckpoint:
    """A plan with changed key channels by layer."""
    return plan(lambda p: change(p["axes"]["key"]["kept"]) and None)


def channels(head: Any) -> SpoilCheckpoint:
    """A plan in which the first head of layer 0 keeps `head`."""
    return keys(lambda kept: kept["0"].__setitem__(0, head))


def values_of(kept: Any) -> SpoilCheckpoint:
    """A plan that also cuts values."""
    return plan(lambda p: p["axes"].update(value={"kept": kept, "method": "rand"}))


for head, expected_text in (
    ([0, 0, 1, 2, 3, 4, 5, 6], "ascending order"),
    ([0, 1, 2, 3, 4, 5, 6, 6], "ascending order"),
    ([7, 6, 5, 4, 3, 2, 1, 0], "ascending order"),
    ([0, 2, 1, 3, 4, 5, 6, 7], "ascending order"),
    ([0, 1, 2, 3, 4, 5, 6, 12], "beyond 0 to 11"),
    ([0, 1, 2, 3, 4, 5, 6, 2**31 - 1], "beyond 0 to 11"),
    ([0, 1, 2, 3, 4, 5, 6, 2**31], "whole numbers"),
    ([0, 1, 2, 3, 4, 5, 6, 2**63], "whole numbers"),
    ([0, 1, 2, 3, 4, 5, 6, 10**300], "whole numbers"),
    ([-1, 1, 2, 3, 4, 5, 6, 7], "whole numbers"),
    ([0.0, 1, 2, 3, 4, 5, 6, 7], "whole numbers"),
    ([0.5, 1, 2, 3, 4, 5, 6, 7], "whole numbers"),
    ([True, 2, 3, 4, 5, 6, 7, 8], "whole numbers"),
    (["0", 1, 2, 3, 4, 5, 6, 7], "whole numbers"),
    ([None, 1, 2, 3, 4, 5, 6, 7], "whole numbers"),
    ([[0], 1, 2, 3, 4, 5, 6, 7], "whole numbers"),
    ([0, 1, 2, 3, 4, 5, 6], "same number of channels"),
    ([0, 1, 2, 3, 4, 5, 6, 7, 8], "same number of channels"),
    ([], "same number of channels"),
    (None, "same number of channels"),
    ("01234567", "same number of channels"),
    (7, "same number of channels"),
    ({"0": 1}, "same number of channels"),
):
    add(f"plan head {head!r}", channels(head), expected_text)
for value in (None, [], {}, "x", 3, [[0]], True):
    add(f"plan kept {value!r}", plan(lambda p, v=value: p["axes"]["key"].update(kept=v)), "kept")
for value in (None, [], {}, "x", 3, [0, 1], [[]], [None], True):
    change = keys(lambda kept, v=value: kept.update({"0": v}))
    add(f"plan layer {value!r}", change, "same number of channels")
for name in ("-1", "0.0", "00", " 0", "x", "", "1e3", "\u0660", "1" * 50, "+1", ESCAPE):
    change = keys(lambda kept, n=name: kept.update({n: kept["0"]}))
    add(f"plan names layer {name!r:.20}", change, "kept")
add("plan lacks a layer", keys(lambda kept: kept.pop("0")), "differ in their")
for layer in ("1", "3", "999999"):
    change = keys(lambda kept, n=layer: kept.update({n: kept["0"]}))
    add(f"plan has layer {layer} too", change, "differ in their")
add("plan lacks a head", keys(lambda kept: kept["0"].pop()), "2 heads of 8")
add(
    "plan has a head too many",
    keys(lambda kept: kept["0"].append(kept["0"][0])),
    "2 heads of 8",
)
add("a layer of 4", keys(lambda kept: kept.update({"2": [[0, 1, 2, 3]] * 2})), "different widths")
for value in (None, [], {}, "x", 3, {"key": None}, {"keys": {}}, {"state": {}}, True):
    add(f"plan axes = {value!r}", plan(lambda p, v=value: p.update(axes=v)), "axes")
for name, heads, expected_text in (
    ("too few heads", [[0, 1, 2, 3]] * 3, "4 heads of 4"),
    ("channels beyond", [[0, 1, 2, 8]] * 4, "beyond 0 to 7"),
    ("no order", [[1, 0, 2, 3]] * 4, "ascending"),
):
    change = values_of({"0": heads, "2": heads})
    add(f"plan cuts values: {name}", change, expected_text)
for value in ({}, [], 3, "x"):
    add(f"plan keeps values {value!r}", values_of(value), "axes")
for value in (0, 2, -1, 1.0, "1", None, True, [1], 10**400):
    add(f"plan version {value!r:.20}", plan(lambda p, v=value: p.update(version=v)), "of version")
for value in (None, "", "statetrim prune", 1, ["statetrim plan"]):
    add(f"plan format {value!r}", plan(lambda p, v=value: p.update(format=v)), "not a statetrim")
for value in (None, "", "0" * 64, 3, [], {"a": 1}):
    change = plan(lambda p, v=value: p["lineage"].update(source=v))
    add(f"plan source {value!r}", change, "made for another model")
for name, values in {
    "lineage": (None, [], "x", 3),
    "seed": (None, [], "x", 1.0, True),
}.items():
    for value in values:
        change = plan(lambda p, n=name, v=value: p.update({n: v}))
        add(f"plan {name} {value!r}", change, f"plan.json is not valid: {name}")
for value in (None, [], "x", 3):
    change = plan(lambda p, v=value: p["axes"]["key"].update(options=v))
    add(f"plan options {value!r}", change, "axes")
add(
    "plan keeps all",
    keys(lambda kept: kept.update({n: [list(range(12))] * 2 for n in ("0", "2")})),
    "nothing would change",
)
for name, text in (BAD_JSON | NOT_OBJECTS).items():
    bad_plan = replaced("../plan.json", lambda path, text=text: path.write_bytes(text))
    add(f"plan is {name}", bad_plan, r"plan\.json")


def big_file(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)  # sparse


add("no plan", replaced("../plan.json", lambda path: None), "is missing")
add("plan is a directory", replaced("../plan.json", Path.mkdir), "is missing")
add("plan of a tebibyte", replaced("../plan.json", big_file), "larger than 24 MiB")


test_refused = CASES.refused()


HEAVY = [
    Case("plan of numbers", heavy_file("plan.json", filled("257", 23 * MIB)), "not a statetrim"),
    Case("plan of objects", heavy_file("plan.json", filled('{"a":0}', 23 * MIB)), "lists and"),
    *CASES.named("plan of a tebibyte"),
]
test_refused_within_a_gigabyte = refused_within_a_gigabyte(HEAVY)


def test_refused_by_the_installed_command(sound: SoundCheckpoint, scratch: Path) -> None:
    check_refused_by_the_installed_command(*CASES.named("no plan"), sound, scratch)
