"""Untrusted files of a checkpoint: pickles, a false index, links that lead out."""

import os
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import raw
from helpers.untrusted import (
    BAD_JSON,
    FIRST,
    MIB,
    NOT_OBJECTS,
    QKV,
    SECOND,
    Cases,
    SpoilCheckpoint,
    edit_json,
    first_name,
    heavy_file,
    many_names,
    put,
    replaced,
)

CASES = Cases()
add = CASES.add


# --- pickles -------------------------------------------------------------------------------------


@dataclass
class Bomb:
    """Unpickling this creates a file."""

    marker: str

    def __reduce__(self) -> Any:
        return (Path.touch, (Path(self.marker),))


def pickled(name: str, protocol: int, *, alone: bool) -> SpoilCheckpoint:
    def spoil(root: Path) -> None:
        if alone:
            for path in (root / "model").glob("model*"):
                path.unlink()
        bomb = Bomb(str(root / "executed"))
        (root / "model" / name).write_bytes(pickle.dumps(bomb, protocol))

    return spoil


for protocol in (0, 2, 4, 5):
    spoil = pickled("pytorch_model.bin", protocol, alone=True)
    add(f"pytorch_model.bin only, protocol {protocol}", spoil, "only safetensors weights")
    spoil = pickled("model.safetensors", protocol, alone=True)
    add(f"pickle named model.safetensors, protocol {protocol}", spoil, "not a safetensors file")
    spoil = pickled(FIRST, protocol, alone=False)
    add(f"pickle named like a shard, protocol {protocol}", spoil, "not a safetensors file")
for name in ("config.json", raw.INDEX, "../plan.json"):
    add(f"pickle named {name}", pickled(name, 4, alone=False), "not valid JSON")


# --- index ---------------------------------------------------------------------------------------


def index(change: Callable[[dict[str, Any]], Any]) -> SpoilCheckpoint:
    return lambda root: edit_json(root / "model" / raw.INDEX, change)


CASES.add_values("index-values", lambda place, value: index(lambda v: put(v, place, value)))
add("index leaves a tensor out", index(lambda v: v["weight_map"].pop(QKV) and None), "it nowhere")
for name, text in (BAD_JSON | NOT_OBJECTS).items():
    bad_index = replaced(raw.INDEX, lambda path, text=text: path.write_bytes(text))
    add(f"index is {name}", bad_index, re.escape(raw.INDEX))


def one_tensor_twice(root: Path) -> None:
    """Put one tensor into both shards; the index can name only one."""
    first, data = raw.read(root / "model" / FIRST)
    second, more = raw.read(root / "model" / SECOND)
    name = first_name(first)
    begin, end = first[name]["data_offsets"]
    offsets = [len(more), len(more) + end - begin]
    second[name] = {**first[name], "data_offsets": offsets}
    raw.write(root / "model" / SECOND, second, more + data[begin:end])


add("a tensor in two shards", one_tensor_twice, "places it elsewhere")
add("an index and a single file", replaced("model.safetensors", Path.touch), "has both")


# --- links ---------------------------------------------------------------------------------------


def linked(name: str, target: str = "moved", *, relative: bool = False) -> SpoilCheckpoint:
    """The file `name` becomes a link to a copy outside the checkpoint."""

    def spoil(root: Path) -> None:
        path, outside = root / "model" / name, root / "outside" / target
        outside.parent.mkdir(exist_ok=True)
        if path.exists():
            path.rename(outside)
        else:
            outside.write_text("secret")
        path.parent.mkdir(exist_ok=True)
        path.symlink_to(os.path.relpath(outside, path.parent) if relative else outside)

    return spoil


for name in (
    FIRST, SECOND, raw.INDEX, "config.json", "tokenizer.json", "README.md", "LICENSE",
    "chat_template.jinja", "generation_config.json", "additional_chat_templates/x.jinja",
):  # fmt: skip
    add(f"{name} is a link out", linked(name), "leads out")
    add(f"{name} is a relative link out", linked(name, relative=True), "leads out")


def link_to(name: str, target: str) -> SpoilCheckpoint:
    return replaced(name, lambda path: path.symlink_to(target))


add("tokenizer.json is a link to /etc/passwd", link_to("tokenizer.json", "/etc/passwd"), "leads")
add("a shard is a link to itself", link_to(FIRST, FIRST), "missing")
add("a shard is a link to nothing", link_to(FIRST, "nowhere"), "missing")
add("a shard is a link to a device", link_to(FIRST, "/dev/zero"), "leads out")
add("config.json is a link to a device", link_to("config.json", "/dev/zero"), "leads out")
add("config.json is a link to nothing", link_to("config.json", "nowhere"), "missing")


def templates_link(root: Path) -> None:
    (root / "outside").mkdir()
    (root / "outside" / "x.jinja").write_text("secret")
    (root / "model" / "additional_chat_templates").symlink_to(root / "outside")


add("additional_chat_templates is a link out", templates_link, "leads out")
for name in (FIRST, "config.json"):
    add(f"{name} is a directory", replaced(name, Path.mkdir), re.escape(name))
    add(f"{name} is a pipe", replaced(name, os.mkfifo), re.escape(name))


add("OUT.partial is a link", link_to("../out.partial", "model"), "not a directory")
add("OUT.partial is a file", replaced("../out.partial", Path.touch), "not a directory")


# Slow: a header of as many names is read by the same parser, and CI tries it.
add("index names", heavy_file(raw.INDEX, many_names(23 * MIB, '"x":0')), "weight_map", slow=True)


test_refused = CASES.refused()
