"""The C++ codec for llama.cpp: the same bytes as ours, the bound in float64, and damaged input."""

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from torch import Tensor

from snapshots.test_coding import measure
from statetrim.snapshots.coding import Coded, decode, encode
from statetrim.snapshots.layout import BFLOAT16, DENSE, FLOAT32, LOW_RANK

PLUGIN = Path(__file__).parents[2] / "plugins" / "llamacpp"
SOURCES = (PLUGIN / "codec_main.cpp", PLUGIN / "common" / "state-codec.cpp")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")


class Codec:
    """Runs the program, which refuses an input by exit code 1."""

    def __init__(self, folder: Path, cxx: str) -> None:
        self.program = folder / "codec"
        command = [cxx, "-std=c++17", "-O1", *WARNINGS, *map(str, SOURCES), "-o", str(self.program)]
        if subprocess.run([*command, *SANITIZERS], capture_output=True).returncode:
            subprocess.run(command, check=True)

    def run(self, *words: object, data: bytes) -> bytes | None:
        """Its output, None if it refused."""
        done = subprocess.run([self.program, *map(str, words)], input=data, capture_output=True)
        assert done.returncode in (0, 1) and not done.stderr, done.stderr.decode()[-2000:]
        return done.stdout if done.returncode == 0 else None

    def encode(self, states: Tensor, tolerance: float) -> Tensor:
        """The code of states [heads, keys, values], uint8."""
        data = self.run("encode", *states.shape, tolerance, data=states.numpy().tobytes())
        assert data is not None
        return torch.frombuffer(bytearray(data), dtype=torch.uint8)

    def decode(self, payload: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """The states, None if the bytes are refused."""
        data = self.run("decode", *shape, data=payload.numpy().tobytes())
        if data is None:
            return None
        return torch.frombuffer(bytearray(data), dtype=torch.float32).reshape(shape)


CXX = next(filter(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++")), None)
pytestmark = pytest.mark.skipif(CXX is None, reason="no C++ compiler is installed")
SHAPES = ((128, 128), (64, 64), (64, 128), (128, 48), (16, 16), (5, 9), (1, 7))
TOLERANCES = (0.02, 0.05, 0.1, 0.3)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Codec:
    assert CXX is not None
    return Codec(tmp_path_factory.mktemp("codec"), CXX)


def states_of_every_kind(keys: int, values: int, seed: int) -> Tensor:
    """Heads of falling, full, one and no rank, of other scales, sparse, and with one large row."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*sizes: int) -> Tensor:
        return torch.randn(*sizes, generator=generator)

    count = min(keys, values)
    falling = [
        (torch.linalg.qr(noise(keys, count)).Q * torch.exp(-torch.arange(count) / rank))
        @ torch.linalg.qr(noise(values, count)).Q.mT
        for rank in (0.5, 2.0, 5.0, 15.0)
    ]
    full, one = noise(keys, values), noise(keys, 1) @ noise(1, values)
    row = full.clone()
    row[0] *= 1e4
    scaled = [falling[1] * 2.0**exponent for exponent in (-140, -110, -99, -30, -9, 9, 30, 99, 126)]
    sparse = full * (torch.rand(keys, values, generator=generator) < 0.02)
    return torch.stack([*falling, full, one, row, torch.zeros(keys, values), sparse, *scaled])


def check(codec: Codec, states: Tensor, tolerance: float) -> None:
    """Both read what either wrote, alike and within the bound; sizes differ little."""
    shape = (states.shape[0], states.shape[1], states.shape[2])
    own = encode(states, tolerance)
    written = Coded(shape, codec.encode(states, tolerance))
    assert written.nbytes <= 1.03 * own.nbytes + 2 * len(states)
    for coded in (own, written):
        expected, read = decode(coded), codec.decode(coded.payload, shape)
        assert read is not None
        assert bool((measure(states, expected) <= tolerance).all())
        assert bool((measure(states, read) <= tolerance).all())
        assert bool((measure(expected, read) <= 1e-6).all())


@pytest.mark.parametrize(("keys", "values"), SHAPES)
def test_the_bound_holds_and_each_reads_the_other(codec: Codec, keys: int, values: int) -> None:
    check(codec, states_of_every_kind(keys, values, seed=0), 0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "values"), SHAPES)
def test_the_bound_holds_on_many_states(codec: Codec, keys: int, values: int) -> None:
    """10,080 in all, those of one shape and tolerance in one call."""
    for first, tolerance in enumerate(TOLERANCES):
        seeds = range(20 * first, 20 * first + 20)
        states = torch.cat([states_of_every_kind(keys, values, seed) for seed in seeds])
        check(codec, states, tolerance)


def test_every_code_is_used(codec: Codec) -> None:
    """And with a bound that integers do not meet, bfloat16 and float32."""
    states = states_of_every_kind(64, 64, seed=1)
    modes = set[int]()
    for tolerance in (0.3, 0.1, 0.05, 0.02, 0.003, 1e-4):
        payload = codec.encode(states, tolerance)
        modes |= set(Coded((len(states), 64, 64), payload).codes.modes.tolist())
    assert modes == {LOW_RANK, *DENSE, BFLOAT16, FLOAT32}


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_heads_that_are_not_finite_are_stored_as_they_are(codec: Codec, wrong: float) -> None:
    states = states_of_every_kind(16, 16, seed=2)
    states[3, 5, 7] = wrong
    decoded = codec.decode(codec.encode(states, 0.05), tuple(states.shape))
    assert decoded is not None
    assert torch.equal(decoded[3].view(torch.int32), states[3].view(torch.int32))
    others = torch.arange(len(states)) != 3
    assert bool((measure(states[others], decoded[others]) <= 0.05).all())


def sequence_bytes(convolutions: Tensor, states: Tensor) -> bytes:
    """What llama.cpp saves of one sequence: states [layers, heads, rows, columns]."""
    layers = len(states)
    content = struct.pack("<7I", 0xAF143CD8, 0, 1, 99, 0, 0, 2 * layers)
    for tensors in (convolutions, states):
        for tensor in tensors:
            content += struct.pack("<iQ", 0, tensor.nbytes) + tensor.numpy().tobytes()
    return content


@pytest.fixture(scope="module")
def sequence() -> tuple[Tensor, Tensor]:
    states = states_of_every_kind(32, 32, seed=3)[:16].reshape(4, 4, 32, 32)
    return torch.randn(4, 24, 32, generator=torch.Generator().manual_seed(4)), states


def test_a_sequence_comes_back_in_its_layout(codec: Codec, sequence: tuple[Tensor, Tensor]) -> None:
    convolutions, states = sequence
    plain = sequence_bytes(convolutions, states)
    coded = codec.run("encode-seq", 4, 32, 32, 0.05, data=plain)
    assert coded is not None and len(coded) < 0.4 * len(plain)
    restored = codec.run("decode-seq", data=coded)
    assert restored is not None and len(restored) == len(plain)
    position = 28
    assert restored[:position] == plain[:position]
    for tensors, tolerance in ((convolutions, 0.01), (states, 0.05)):
        for tensor in tensors:
            assert restored[position : position + 12] == plain[position : position + 12]
            position += 12
            numbers = bytearray(restored[position : position + tensor.nbytes])
            decoded = torch.frombuffer(numbers, dtype=torch.float32).reshape(tensor.shape)
            heads = (-1, *tensor.shape[-2:])
            errors = measure(tensor.reshape(heads), decoded.reshape(heads))
            assert bool((errors <= tolerance).all())
            position += tensor.nbytes


def test_other_layouts_are_not_coded(codec: Codec, sequence: tuple[Tensor, Tensor]) -> None:
    plain = sequence_bytes(*sequence)
    assert codec.run("encode-seq", 4, 32, 32, 0.05, data=plain)
    for name, content in (
        ("two cells", plain[:8] + struct.pack("<I", 2) + plain[12:]),
        ("transposed", plain[:20] + struct.pack("<I", 1) + plain[24:]),
        ("another type", plain[:28] + struct.pack("<i", 1) + plain[32:]),
        ("not complete", plain[:-1]),
        ("longer", plain + b"\0"),
        ("nothing", b""),
    ):
        assert codec.run("encode-seq", 4, 32, 32, 0.05, data=content) is None, name
    assert codec.run("encode-seq", 4, 32, 31, 0.05, data=plain) is None


@pytest.mark.parametrize("count", [500, pytest.param(5_000, marks=pytest.mark.slow)])
def test_damaged_codes_do_no_harm(
    codec: Codec, sequence: tuple[Tensor, Tensor], count: int
) -> None:
    """The sanitizers end the program at the first read or write out of bounds."""
    states = states_of_every_kind(16, 24, seed=5)
    payload = codec.encode(states, 0.05).numpy().tobytes()
    coded = codec.run("encode-seq", 4, 32, 32, 0.05, data=sequence_bytes(*sequence))
    assert coded is not None
    for words, data in (
        (("mutants", *states.shape, count, 0), payload),
        (("mutants-seq", count, 0), coded),
    ):
        refused = codec.run(*words, data=data)
        assert refused is not None and 0.3 * count < int(refused) < count


def test_codes_of_another_shape_are_refused(codec: Codec) -> None:
    states = states_of_every_kind(16, 16, seed=6)
    payload, heads = codec.encode(states, 0.05), len(states)
    for shape in ((heads + 1, 16, 16), (heads - 1, 16, 16), (heads, 16, 17), (heads, 0, 16)):
        assert codec.decode(payload, shape) is None
    assert codec.decode(payload[:-1], (heads, 16, 16)) is None
