"""Damaged and hostile plan.json files are refused with an error message."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from helpers.untrusted import (
    BAD_JSON,
    ESCAPE,
    MIB,
    NOT_OBJECTS,
    Cases,
    SpoilCheckpoint,
    edit_json,
    filled,
    heavy_file,
    put,
    replaced,
    sparse_file,
)

CASES = Cases()
add = CASES.add


def plan(change: Callable[[dict[str, Any]], Any]) -> SpoilCheckpoint:
    return lambda root: edit_json(root / "plan.json", change)


def keys(change: Callable[[dict[str, Any]], Any]) -> SpoilCheckpoint:
    """A plan with changed key channels by layer."""
    return plan(lambda p: change(p["axes"]["key"]["kept"]) and None)


CASES.add_values("plan-values", lambda place, value: plan(lambda p: put(p, place, value)))
for name in ("-1", "0.0", "00", " 0", "x", "", "1e3", "\u0660", "1" * 50, "+1", ESCAPE):
    change = keys(lambda kept, n=name: kept.update({n: kept["0"]}))
    add(f"plan names layer {name!r:.20}", change, "kept")
add("plan lacks a layer", keys(lambda kept: kept.pop("0")), "differ in their")
for layer in ("1", "3", "999999"):
    change = keys(lambda kept, n=layer: kept.update({n: kept["0"]}))
    add(f"plan has layer {layer} too", change, "differ in their")
add("plan lacks a head", keys(lambda kept: kept["0"].pop()), "2 heads of 8")
add("plan has a head too many", keys(lambda kept: kept["0"].append(kept["0"][0])), "2 heads of 8")
every_channel = {layer: [list(range(12))] * 2 for layer in ("0", "2")}
add("plan keeps all", keys(lambda kept: kept.update(every_channel)), "nothing would change")
for name, text in (BAD_JSON | NOT_OBJECTS).items():
    bad_plan = replaced("../plan.json", lambda path, text=text: path.write_bytes(text))
    add(f"plan is {name}", bad_plan, r"plan\.json")


add("no plan", replaced("../plan.json", lambda path: None), "is missing")
add("plan is a directory", replaced("../plan.json", Path.mkdir), "is missing")
add("plan of a tebibyte", replaced("../plan.json", sparse_file), "larger than 24 MiB")
add("plan of numbers", heavy_file("plan.json", filled("257", 23 * MIB)), "not a statetrim")
add("plan of objects", heavy_file("plan.json", filled('{"a":0}', 23 * MIB)), "lists and")


test_refused = CASES.refused()
