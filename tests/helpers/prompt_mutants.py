"""Damages a saved prompt at random (seeded) and loads it.

    python -m helpers.prompt_mutants 5000 0     5000 mutants with seed 0 (`just prompt-mutants`)

A mutant may be loaded or refused with one sentence; half of them get a checksum that fits, as an
attacker would do it.
"""

import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import statetrim as st
from helpers import tiny
from helpers.mutants import mutate_bytes, mutate_header, mutate_json
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.snapshots.stream import checksum

MAX_SECONDS = 10.0


def mutate_inside(draw: random.Random, path: Path) -> None:
    """Damage the header of the states or one tensor, and let the checksum fit."""
    tensors, metadata = load_file(path), _metadata(path)
    if draw.random() < 0.4:
        text = mutate_json(draw, metadata.encode())
    else:
        name = draw.choice(sorted(tensors))
        if draw.random() < 0.2:
            del tensors[name]
        elif tensors[name].dtype == torch.uint8:
            damaged = mutate_bytes(draw, tensors[name].numpy().tobytes())
            tensors[name] = torch.frombuffer(bytearray(damaged or b"\0"), dtype=torch.uint8)
        else:
            tensors[name] = draw.choice((tensors[name].bfloat16(), tensors[name][..., :1]))
            tensors[name] = tensors[name].contiguous()
        text = metadata.encode()
    try:
        header: Any = json.loads(text)
    except ValueError:
        header = None
    if isinstance(header, dict):
        header["checksum"] = checksum(tensors)
        text = json.dumps(header).encode()
    save_file(tensors, path, {"statetrim": text.decode(errors="replace")})


def _metadata(path: Path) -> str:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    stored: str = json.loads(content[8 : 8 + length])["__metadata__"]["statetrim"]
    return stored


def prompt_mutants(
    live: LiveModel, path: Path, count: int, seed: int
) -> Iterator[tuple[int, str | None]]:
    """Yields the number of each mutant, and its problem or None."""
    sound = path.read_bytes()
    for number in range(count):
        draw = random.Random(seed * 1_000_003 + number)
        began, problem = time.process_time(), None
        try:
            if number % 2:
                mutate_inside(draw, path)
            else:
                mutate = draw.choice((mutate_bytes, mutate_header))
                path.write_bytes(mutate(draw, sound))
            st.load_prompt(live.module, path, model=live.checkpoint)
        except st.StatetrimError as error:
            if len(str(error)) > 2000:  # the console makes the rest printable
                problem = f"not one sentence: {str(error)[:300]!r}"
        except BaseException:
            problem = traceback.format_exc()[-1500:]
        finally:
            path.write_bytes(sound)
        if time.process_time() - began > MAX_SECONDS:
            problem = "took more than ten seconds"
        yield number, problem


def main(count: int, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="statetrim-mutants-") as folder:
        live, path = load_live(tiny.build("qwen3_5_text", Path(folder) / "model")), Path(folder)
        with torch.inference_mode():
            _, cache = live.forward_with_cache(live.random_ids(1, 20))
        st.save_prompt(cache, path / "prompt", model=live.checkpoint)
        results = Counter[bool]()
        for number, problem in prompt_mutants(live, path / "prompt", count, seed):
            results[problem is None] += 1
            if problem:
                print(f"number {number}: {problem}", flush=True)
    print(f"{count} mutants of a saved prompt, {results[False]} failures")
    return int(results[False] > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
