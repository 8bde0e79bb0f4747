"""Damages a saved prompt at random (seeded) and loads it.

    python -m helpers.prompt_mutants 5000 0     5000 mutants with seed 0 (`just prompt-mutants`)

A mutant is refused with one sentence, or it is a prompt of this model: then the logits after it are
those of the model's own cache with the file's tensors. Neither may take more than twice the memory
of the sound file. Half of them get a checksum that fits, as an attacker would do it.
"""

import copy
import json
import math
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import statetrim as st
from helpers import tiny
from helpers.mutants import mutate_bytes, mutate_header, mutate_json
from helpers.untrusted import memory_bytes
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live
from statetrim.snapshots.coding import Coded, decode
from statetrim.snapshots.stream import checksum

MAX_SECONDS = 10.0
NEXT = torch.tensor([[5], [6]])
"""Tokens that are read after a prompt, one after the other."""
MEMORY_SLACK = 2**20
"""Bytes: pages that the allocator takes whatever is loaded."""


@dataclass(frozen=True, eq=False)
class SoundPrompt:
    """A saved prompt, the cache it was saved from, and the memory that loading it takes."""

    live: LiveModel
    path: Path
    cache: Any
    memory: int

    @staticmethod
    def save(live: LiveModel, path: Path, tokens: int = 20) -> "SoundPrompt":
        with torch.inference_mode():
            _, cache = live.forward_with_cache(live.random_ids(1, tokens))
        st.save_prompt(cache, path, model=live.checkpoint)
        st.load_prompt(live.module, path, model=live.checkpoint)  # what is imported once
        memory = _peak_memory(lambda: st.load_prompt(live.module, path, model=live.checkpoint))
        return SoundPrompt(live, path, cache, memory)


def _peak_memory(run: Callable[[], object]) -> int:
    """Bytes that the process has more at the peak of `run` than before it."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    before = memory_bytes("VmRSS")
    run()
    return memory_bytes("VmHWM") - before


def mutate_inside(draw: random.Random, path: Path) -> None:
    """Damage the header of the states or one tensor, and let the checksum fit."""
    tensors, metadata = load_file(path), _metadata(path)
    kind = draw.random()
    if kind < 0.3:
        text = mutate_json(draw, metadata.encode())
    elif kind < 0.5:
        text = _claim_more(draw, json.loads(metadata))
    else:
        text = metadata.encode()
        name = draw.choice(sorted(tensors))
        if draw.random() < 0.2:
            del tensors[name]
        elif tensors[name].dtype == torch.uint8:
            damaged = mutate_bytes(draw, tensors[name].numpy().tobytes())
            tensors[name] = torch.frombuffer(bytearray(damaged or b"\0"), dtype=torch.uint8)
        else:
            names = draw.choice(([name], [other for other in tensors if ".keys" in other]))
            change = draw.choice(_KV_CHANGES)
            for other in names:
                tensors[other] = change(tensors[other]).contiguous()
    try:
        header: Any = json.loads(text)
    except ValueError:
        header = None
    if isinstance(header, dict):
        header["checksum"] = checksum(tensors)
        text = json.dumps(header).encode()
    save_file(tensors, path, {"statetrim": text.decode(errors="replace")})


def _claim_more(draw: random.Random, header: dict[str, Any]) -> bytes:
    """A header of a larger batch, of more heads or channels, or of both, which may agree."""
    factor = draw.choice((2, 3, 64, 4096))
    if draw.random() < 0.7:
        header["batch"] *= factor
    axis = draw.randrange(3)
    for name, shape in header["shapes"].items():
        if draw.random() < 0.9:
            header["shapes"][name] = [size * (factor, 1)[i != axis] for i, size in enumerate(shape)]
    return json.dumps(header).encode()


def _poke(value: float) -> Callable[[Tensor], Tensor]:
    def change(tensor: Tensor) -> Tensor:
        poked = tensor.clone()
        poked.view(-1)[:1] = value
        return poked

    return change


_KV_CHANGES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x.bfloat16(),
    lambda x: x[..., :1],
    lambda x: x[:, :, :0],
    lambda x: x[:, :, :5],
    lambda x: x.repeat(3, 1, 1, 1),
    lambda x: x.repeat(1, 3, 1, 1),
    lambda x: x.repeat(1, 1, 2, 1),
    lambda x: x.flatten(),
    lambda x: x[0],
    *(_poke(value) for value in (math.nan, math.inf, -3e38, 1e15, 0.5)),
)


def _metadata(path: Path) -> str:
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    stored: str = json.loads(content[8 : 8 + length])["__metadata__"]["statetrim"]
    return stored


def read_on(live: LiveModel, cache: Any) -> Tensor:
    """Logits [1, 2, vocabulary] of the tokens `NEXT`, which change `cache`."""
    with torch.inference_mode():
        steps = [live.forward_with_cache(token[None], cache)[0] for token in NEXT]
    return torch.cat(steps, 1)


def expected_logits(sound: SoundPrompt) -> Tensor:
    """Logits after the file's prompt: its tensors are put into the saved cache by name, which must
    have their shapes, except for the tokens in a KV cache."""
    tensors, shapes = load_file(sound.path), json.loads(_metadata(sound.path))["shapes"]
    cache = copy.deepcopy(sound.cache)
    tokens = set()
    for number, layer in enumerate(cache.layers):
        for name in ("keys", "values"):
            if isinstance(getattr(layer, name, None), Tensor):
                stored = tensors.pop(f"{number}.{name}")
                before = getattr(layer, name)
                assert stored.dtype == before.dtype and stored.dim() == 4
                assert (*stored.shape[:2], stored.shape[3]) == (*before.shape[:2], before.shape[3])
                tokens.add(stored.shape[2])
                setattr(layer, name, stored)
        for name in ("recurrent_states", "conv_states"):
            for key, before in getattr(layer, name, {}).items():
                place = f"{number}.{name}.{key}"
                states = decode(Coded(tuple(shapes[place]), tensors.pop(place)))
                states = states.mT if name == "conv_states" else states
                getattr(layer, name)[key] = states.reshape(before.shape).contiguous()
    assert not tensors and len(tokens) == 1
    return read_on(sound.live, cache)


def problem_of(sound: SoundPrompt) -> str | None:
    """What is wrong with how the file at `sound.path` is loaded, or None."""
    live, caches, refusals = sound.live, list[Any](), list[str]()

    def load() -> None:
        try:
            caches.append(st.load_prompt(live.module, sound.path, model=live.checkpoint))
        except st.StatetrimError as error:
            refusals.append(str(error))

    began = time.process_time()
    try:
        memory = _peak_memory(load)
    except BaseException:
        return traceback.format_exc()[-1500:]
    if any(len(text) > 2000 for text in refusals):  # the console makes the rest printable
        return f"not one sentence: {refusals[0][:300]!r}"
    if time.process_time() - began > MAX_SECONDS:
        return "took more than ten seconds"
    if memory > 2 * sound.memory + MEMORY_SLACK:
        return f"took {memory} bytes, the sound prompt {sound.memory}"
    return _wrong_logits(sound, caches[0]) if caches else None


def _wrong_logits(sound: SoundPrompt, cache: Any) -> str | None:
    try:
        logits, expected = read_on(sound.live, cache), expected_logits(sound)
    except BaseException:
        return "loaded, but does not read on: " + traceback.format_exc()[-1500:]
    if not bool(torch.isfinite(logits).all()):
        return "loaded, with logits that are not finite"
    return None if torch.equal(logits, expected) else "loaded, with other logits"


def prompt_mutants(sound: SoundPrompt, count: int, seed: int) -> Iterator[tuple[int, str | None]]:
    """Yields the number of each mutant, and its problem or None."""
    content = sound.path.read_bytes()
    for number in range(count):
        draw = random.Random(seed * 1_000_003 + number)
        try:
            if number % 2:
                mutate_inside(draw, sound.path)
            else:
                mutate = draw.choice((mutate_bytes, mutate_header))
                sound.path.write_bytes(mutate(draw, content))
            yield number, problem_of(sound)
        finally:
            sound.path.write_bytes(content)


def main(count: int, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="statetrim-mutants-") as folder:
        live = load_live(tiny.build("qwen3_5_text", Path(folder) / "model"))
        sound, results = SoundPrompt.save(live, Path(folder) / "prompt", 4000), Counter[bool]()
        print(f"the sound prompt takes {sound.memory} bytes")
        for number, problem in prompt_mutants(sound, count, seed):
            results[problem is None] += 1
            if problem:
                print(f"number {number}: {problem}", flush=True)
    print(f"{count} mutants of a saved prompt, {results[False]} failures")
    return int(results[False] > 0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
