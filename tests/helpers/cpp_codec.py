"""The C++ codec of plugins/llamacpp, compiled alone, with sanitizers if the compiler has them."""

import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch import Tensor

PLUGIN = Path(__file__).parents[2] / "plugins" / "llamacpp"
SOURCES = (PLUGIN / "codec_main.cpp", PLUGIN / "common" / "state-codec.cpp")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Werror")


def compiler() -> str | None:
    """The C++ compiler of this machine."""
    return next(filter(shutil.which, (os.environ.get("CXX", ""), "c++", "g++", "clang++")), None)


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
