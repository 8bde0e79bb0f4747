"""Untrusted safetensors headers."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck
from hypothesis import strategies as any_

import statetrim as st
from helpers import raw
from helpers.tiny import Load
from helpers.untrusted import (
    BAD_JSON,
    BASE,
    ESCAPE,
    FIRST,
    MIB,
    NOT_OBJECTS,
    Cases,
    SpoilCheckpoint,
    filled,
    first_name,
    heavy_file,
    many_names,
)
from statetrim.storage.json_file import parse_json
from statetrim.storage.safetensors_file import read_shard

CASES = Cases()
add = CASES.add


def file_bytes(change: Callable[[bytes], bytes]) -> SpoilCheckpoint:
    def spoil(root: Path) -> None:
        path = root / "model" / FIRST
        path.write_bytes(change(path.read_bytes()))

    return spoil


def header(change: Callable[[dict[str, Any]], Any], length: int | None = None) -> SpoilCheckpoint:
    """Let `change` edit the header's JSON object, or return a replacement for it."""

    def spoil(root: Path) -> None:
        path = root / "model" / FIRST
        value, data = raw.read(path)
        replaced = change(value)
        raw.write(path, value if replaced is None else replaced, data, length)

    return spoil


def entry(**fields: Any) -> SpoilCheckpoint:
    return header(lambda value: value[first_name(value)].update(fields))


def shifted(begin: int, end: int) -> SpoilCheckpoint:
    """Move the first tensor's offsets by `begin` and `end` bytes."""

    def change(value: dict[str, Any]) -> None:
        first = value[first_name(value)]
        first["data_offsets"] = [first["data_offsets"][0] + begin, first["data_offsets"][1] + end]

    return header(change)


for kept in (0, 1, 7, 8, 9, 40, 100):
    add(f"truncated to {kept}", file_bytes(lambda c, k=kept: c[:k]), FIRST)
for part in (0.2, 0.5, 0.9, 0.999):
    truncated = file_bytes(lambda c, p=part: c[: int(len(c) * p)])
    add(f"truncated to {part:%}", truncated, "not complete")
add("trailing bytes", file_bytes(lambda c: c + b"\0" * 7), "not complete")
for length in (24 * 2**20 + 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1):
    add(f"header of {length} bytes", header(lambda v: None, length), "not a safetensors file")
for length in (0, 1, 2, 50):
    add(f"header of {length} bytes", header(lambda v: None, length), "not valid JSON")
for name, text in BAD_JSON.items():
    add(f"header is bad JSON: {name}", header(lambda v, t=text: t), "not valid JSON")
for name, text in NOT_OBJECTS.items():
    add(f"header is a {name}", header(lambda v, t=text: t), "must hold a JSON object")
for value in ({"a": 1}, {"a": None}, [], "x", None, 3):
    add(f"metadata {value!r}", header(lambda v, m=value: v.update(__metadata__=m)), "metadata")
for value in (None, [], "F32", 1, {}, {"dtype": "F32"}):
    change = header(lambda v, e=value: v.update({first_name(v): e}))
    add(f"entry {value!r}", change, "not dtype, shape and data_offsets")
CASES.add_values("header-values", lambda name, value: entry(**{name: value}))
for begin, end in ((4, 4), (64, 64), (2**40, 2**40), (1, 1)):
    add(f"gap of {begin}", shifted(begin, end), "leave a gap")
for begin, end in ((0, 4), (4, 0), (0, 2**40)):
    add(f"tensor of {begin}, {end} more bytes", shifted(begin, end), "do not fit shape")


def overlapping(value: dict[str, Any]) -> None:
    value["copy"] = dict(value[list(value)[-1]])


def all_at_zero(value: dict[str, Any]) -> None:
    for name in value:
        if name != "__metadata__":
            begin, end = value[name]["data_offsets"]
            value[name]["data_offsets"] = [0, end - begin]


def described_beyond(value: dict[str, Any]) -> None:
    end = max(v["data_offsets"][1] for k, v in value.items() if k != "__metadata__")
    value["beyond"] = {"dtype": "U8", "shape": [2**40], "data_offsets": [end, end + 2**40]}


add("two names for the same bytes", header(overlapping), "overlap")
add("all tensors at 0", header(all_at_zero), "overlap")
add("data that are not there", header(described_beyond), "not complete")
add("escape codes in a tensor name", header(lambda v: v.update({ESCAPE: 1})), "dtype, shape")
add("no tensors", header(lambda v: b"{}"), "not complete")
for name, content, message in (
    ("text file", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", FIRST),
    ("zeros", b"\0" * 4096, "not valid JSON"),
    ("zip", b"PK\x03\x04" + b"\0" * 200, "not a safetensors file"),
    ("gguf", b"GGUF\x03\0\0\0" + b"\0" * 200, "not a safetensors file"),
):
    add(name, file_bytes(lambda c, new=content: new), message)


def zero_sized_tensors() -> bytes:
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    return ("{" + ",".join(f'"{n:x}":{entry}' for n in range(300_000)) + "}").encode()


for name, content, message, slow in (
    ("empty lists", filled("[]", 23 * MIB), "lists and", False),
    ("nested", filled("[" * 60 + "]" * 60, 23 * MIB), "lists and", True),
    ("numbers", filled("1.5", 23 * MIB), "dtype, shape", True),
    ("names", many_names(23 * MIB, '"x":0'), "dtype, shape", True),
    ("last name twice", many_names(23 * MIB, '"0":0'), "appears twice", False),
    ("zero-sized tensors", zero_sized_tensors, "places it nowhere", False),
):
    add(f"heavy: {name}", heavy_file(FIRST, content), message, slow=slow)


test_refused = CASES.refused()


@hypothesis.settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@hypothesis.given(text=any_.binary(max_size=200) | any_.text(max_size=200).map(str.encode))
def test_any_bytes_are_an_object_or_refused(text: bytes) -> None:
    try:
        assert isinstance(parse_json(text, "it"), dict)
    except st.StatetrimError as error:
        assert "it" in str(error)


@hypothesis.settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@hypothesis.given(
    offset=any_.integers(0, 10**6), byte=any_.integers(0, 255), cut=any_.integers(0, 3)
)
def test_any_damaged_byte_is_harmless_or_refused(
    sound: Load, scratch: Path, offset: int, byte: int, cut: int
) -> None:
    """An accepted header still describes every byte of the file exactly once."""
    content = bytearray((sound(BASE) / "model" / FIRST).read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    content[offset % (8 + length)] = byte
    path = scratch / "damaged.safetensors"
    path.write_bytes(content[: len(content) - cut])
    try:
        shard = read_shard(path)
    except st.StatetrimError:
        return
    (length,) = struct.unpack("<Q", content[:8])
    # Not always `not cut`: the length can say that the header is shorter by as many blanks.
    assert sum(tensor.nbytes for tensor in shard.tensors) == len(content) - cut - 8 - length
