"""Coded checkpoints in llama-server: memory, tokens, divergence and time as conversations branch.

    python tools/engines/coded_checkpoints.py ENGINES SERVER MODEL --text TEXT --work WORK -o OUT

ENGINES holds the environment `llamacpp`, SERVER is the llama-server of make_llamacpp_server.sh, and
MODEL a `qwen3_5_text` checkpoint. Each slot reads a conversation turn by turn. Then it goes back,
turn by turn from the last: to generate an answer again, or with another turn in its place. The same
requests go to a server without checkpoints, one with plain ones, and one with coded ones for each
error.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import socket
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import statetrim as st
from statetrim.runtime.corpus import Corpus

OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignores http_proxy
CODED = re.compile(
    r"coded context checkpoint: (\d+) -> (\d+) bytes, worst error ([\d.]+), ([\d.]+) ms"
)
DECODED = re.compile(r"decoded context checkpoint: \d+ -> \d+ bytes, ([\d.]+) ms")
CREATED = re.compile(r"created context checkpoint .*?size = ([\d.]+) MiB")
CONVERT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from ask_llamacpp import convert
converter = Path(sys.prefix) / "llama.cpp" / "convert_hf_to_gguf.py"
convert(Path(sys.argv[2]), Path(sys.argv[3]), "float32", converter)
"""


@dataclass
class Server:
    """A running llama-server, and its log."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    @staticmethod
    def start(program: Path, gguf: Path, log: Path, options: list[str]) -> Server:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [program, "-m", gguf, "--port", port, "-lv", 4, "--no-webui", *options]
        with log.open("wb") as file:
            process = subprocess.Popen(list(map(str, command)), stdout=file, stderr=file)
        server = Server(process, f"http://127.0.0.1:{port}", log)
        while True:
            try:
                OPENER.open(f"{server.url}/health", timeout=5).close()
                return server
            except OSError:
                if process.poll() is not None:
                    raise SystemExit(f"Error: the server did not start; see {log}") from None
                time.sleep(0.5)

    def complete(self, slot: int, prompt: list[int], **options: Any) -> dict[str, Any]:
        """Greedy completion in a slot; `seconds` is the time of the whole request."""
        body = {"prompt": prompt, "id_slot": slot, "cache_prompt": True, "temperature": 0}
        body |= {"top_k": 1, "return_tokens": True, **options}
        request = urllib.request.Request(
            f"{self.url}/completion",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        began = time.perf_counter()
        with OPENER.open(request, timeout=3600) as answer:
            parsed: dict[str, Any] = json.load(answer)
        return parsed | {"seconds": time.perf_counter() - began}

    @property
    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()


@dataclass
class Run:
    """What a server did with the conversations."""

    tokens: list[list[int]] = field(default_factory=list)
    distributions: list[dict[int, float]] = field(default_factory=list)
    """Token -> log-probability of the next token, by branch; empty where the server drops it."""
    first_token_ms: list[float] = field(default_factory=list)
    read_again: list[int] = field(default_factory=list)  # tokens after the checkpoint
    resident_bytes: int = 0
    coded: list[tuple[int, int, float, float]] = field(default_factory=list)
    """Bytes before and after, worst error, milliseconds, by checkpoint."""
    decode_ms: list[float] = field(default_factory=list)
    checkpoints: int = 0


def branches(ids: list[int], turn: int, turns: int) -> Iterator[list[int]]:
    """Prompts that go back, from the last turn to the second: every other one has other text in
    place of its last turn."""
    other = ids[(turns + 1) * turn :]
    for last in range(turns, 1, -1):
        kept = ids[: last * turn]
        yield kept if last % 2 else kept[:-turn] + other[:turn]


def converse(server: Server, slots: list[list[int]], turn: int, turns: int, **options: Any) -> Run:
    """Every slot reads its turns, then every slot goes back."""
    run = Run()
    for last in range(1, turns + 1):
        for slot, ids in enumerate(slots):
            server.complete(slot, ids[: last * turn], n_predict=1)
    time.sleep(1)  # the last checkpoints are being coded
    run.resident_bytes = server.resident_bytes
    for prompts in zip(*(branches(ids, turn, turns) for ids in slots), strict=True):
        for slot, prompt in enumerate(prompts):
            answer = server.complete(slot, prompt, **options)
            run.tokens.append(answer["tokens"])
            run.first_token_ms.append(answer["timings"]["prompt_ms"])
            run.read_again.append(len(prompt) - answer["timings"]["cache_n"])
            entries = answer.get("completion_probabilities") or [{"top_logprobs": []}]
            first = entries[0]["top_logprobs"]
            run.distributions.append({entry["id"]: entry["logprob"] for entry in first})
    return run


def start(options: argparse.Namespace, kind: str, extra: list[str]) -> Server:
    context = len(options.slots) * (options.turns * options.turn + 2 * options.turn + 128)
    shared = ["-c", context, "-np", len(options.slots), "-t", options.threads, "--cache-ram", 0]
    shared += ["-fa", "off", "-ctk", "f32", "-ctv", "f32", "--checkpoint-min-step", 0]
    shared += ["--ctx-checkpoints", 2 * options.turns + 4]  # a turn makes two
    log = options.work / f"{options.gguf.stem}-{kind}.log"
    return Server.start(options.server, options.gguf, log, [*map(str, shared), *extra])


def read_log(server: Server, run: Run) -> Run:
    text = server.log.read_text(errors="replace")
    run.checkpoints = len(CREATED.findall(text))
    run.coded = [(int(a), int(b), float(c), float(d)) for a, b, c, d in CODED.findall(text)]
    run.decode_ms = [float(ms) for ms in DECODED.findall(text)]
    return run


def run_server(options: argparse.Namespace, kind: str, extra: list[str], **request: Any) -> Run:
    server = start(options, kind, extra)
    try:
        run = converse(server, options.slots, options.turn, options.turns, **request)
    finally:
        server.stop()
    return read_log(server, run)


def generate_again(options: argparse.Namespace, extra: list[str]) -> dict[str, Any]:
    """Ten times the answer to one prompt, all from the same checkpoint."""
    server, prompt = start(options, "again", extra), options.slots[0][: 4 * options.turn]
    try:
        server.complete(0, prompt, n_predict=options.tokens)
        request = {"n_predict": options.tokens, "ignore_eos": True}
        answers = [server.complete(0, prompt, **request)["tokens"] for _ in range(10)]
    finally:
        server.stop()
    run = read_log(server, Run())
    different = sum(answer != answers[0] for answer in answers)
    return {"again": {"different": different, "coded": len(run.coded)}}


def divergence(expected: dict[int, float], measured: dict[int, float]) -> float | None:
    """KL in nats, None where a server reports no probabilities."""
    if not expected or expected.keys() != measured.keys():
        return None
    return sum(math.exp(p) * (p - measured[token]) for token, p in expected.items())


def compare_tokens(plain: Run, other: Run) -> dict[str, Any]:
    """How many continuations are equal, and where the others differ first."""
    places = []
    for expected, generated in zip(plain.tokens, other.tokens, strict=True):
        pairs = enumerate(zip(expected, generated, strict=True))
        places.append(next((place for place, (a, b) in pairs if a != b), len(expected)))
    differing = [place for place, ids in zip(places, plain.tokens, strict=True) if place < len(ids)]
    return {"branches": len(places), "equal": len(places) - len(differing), "differ_at": differing}


def times(run: Run) -> dict[str, Any]:
    return {
        "checkpoints": run.checkpoints,
        "resident_mib": round(run.resident_bytes / 2**20, 1),
        "first_token_ms": round(statistics.median(run.first_token_ms), 1),
        "tokens_read_again": statistics.median(run.read_again),
    }


def coding(run: Run) -> dict[str, Any]:
    before, after, errors, milliseconds = zip(*run.coded, strict=True)
    return {
        "checkpoint_bytes": before[0],
        "share": round(sum(after) / sum(before), 5),
        "worst_error": max(errors),
        "encode_ms": statistics.median(milliseconds),
        "decode_ms": statistics.median(run.decode_ms),
    }


def compare_distributions(plain: Run, coded: Run) -> dict[str, Any]:
    pairs = zip(plain.distributions, coded.distributions, strict=True)
    values = [value for a, b in pairs if (value := divergence(a, b)) is not None]
    return {"kl_mean": statistics.fmean(values), "kl_max": max(values), "kl_branches": len(values)}


def prepare(options: argparse.Namespace) -> None:
    """The model as GGUF, and the token ids of every slot."""
    model = st.open(options.model)
    options.work.mkdir(parents=True, exist_ok=True)
    options.gguf = options.work / "model.gguf"
    if not options.gguf.exists():
        python = options.engines / "llamacpp" / "bin" / "python"
        drivers = Path(st.__file__).parent / "verification" / "drivers"
        command = [python, "-c", CONVERT, drivers, model.path, options.gguf]
        subprocess.run(command, check=True, capture_output=True)
    length = (options.turns + 2) * options.turn
    ids = Corpus(options.text, model).read(tokens=options.parallel * length, length=length).ids
    options.slots = ids.tolist()


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """No checkpoints with plain ones, and coded ones of every error with plain ones."""
    continued: dict[str, Any] = {"n_predict": options.tokens, "ignore_eos": True}
    next_token: dict[str, Any] = {"n_predict": 1, "n_probs": 4096}
    plain = run_server(options, "plain", [], **continued)
    without = run_server(options, "without", ["--ctx-checkpoints", "0"], **continued)
    plain_next = run_server(options, "plain", [], **next_token)
    common = {"model": options.gguf.stem, "slots": options.parallel, "turn": options.turn}
    common |= {"plain": times(plain)}
    lines = [common | {"without": times(without) | compare_tokens(plain, without)}]
    for error in options.errors:
        extra = ["--ctx-checkpoint-error", str(error)]
        coded = run_server(options, f"within-{error}", extra, **continued)
        coded_next = run_server(options, f"within-{error}", extra, **next_token)
        line = common | {"error": error} | coding(coded) | times(coded)
        line |= generate_again(options, extra)
        line |= compare_tokens(plain, coded) | compare_distributions(plain_next, coded_next)
        lines.append(line)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("engines", type=Path)
    parser.add_argument("server", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--errors", type=float, nargs="+", default=[0.05])
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--turn", type=int, default=48)
    parser.add_argument("--turns", type=int, default=26)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    prepare(options)
    with options.out.open("a") as file:
        for line in compare(options):
            print(json.dumps(line))
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
