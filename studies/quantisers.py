"""Quantise a model and its cut with public tools, and measure what each step loses.

    python studies/quantisers.py tools MODEL CUT --test TEXT --work DIR --windows 40
    python studies/quantisers.py gguf MODEL CUT --test TEXT --work DIR
    python studies/quantisers.py check --work DIR --text TEXT --tools PYTHON --llamacpp PYTHON
    python studies/quantisers.py page

`tools` runs in an environment with torch, llmcompressor, torchao, auto-round and nvidia-modelopt.
transformers loads every result but ModelOpt's, which it does not know. `gguf` runs in that of
`tools/engines/make_llamacpp.sh`: llama.cpp converts, quantises and reads. Where a width does not
fit the blocks of a type, it takes another one: the tensors of each type are counted. NLL is per
token on windows of the test text; recall is MQAR. `check` runs `evaluate` against the original in
16 bits and `verify`, in transformers with the tools' environment and in llama.cpp by type.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import mqar
from runner import Row, fill, start, study_parser, table

PAIRS = 63
GROUP = 32  # divides the reference model's widths; 128 is usual for large models
ROWS = 32  # recall sequences
GGUF_TYPES = ("Q8_0", "Q4_K_M", "Q4_0")
SCORED: dict[str, Any] = {"tasks": ["text"], "limit": 8, "progress": False}
VERIFIED: dict[str, Any] = {"count": 4, "length": 64, "generate": 8, "progress": False}


def windows_of(tokenizer: Path, options: Any) -> Tensor:
    """Int64 [windows, length] of the test text."""
    from transformers import AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(tokenizer)(options.test.read_text())["input_ids"]
    count = options.windows * options.length
    return torch.tensor(encoded[:count]).reshape(options.windows, options.length)


def parse(results: str, windows: int) -> Any:
    """Arguments of the two runs that measure a model and its cut."""
    parser = study_parser(
        __doc__, "model", "cut", "test", "work", results=results, windows=windows, length=256
    )
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    options.sources = {"original": options.model, "cut": options.cut}
    return options


def write(results: Path, packages: tuple[str, ...], rows: list[Row]) -> None:
    versions = {package: version(package) for package in packages}
    results.write_text(json.dumps({"versions": versions, "rows": rows}, indent=2) + "\n")


def run_tools() -> None:
    """Measure both models, unquantised and by every tool, and write one row for each."""
    options, rows = parse("results/quantise-cut.json", windows=80), []
    for name, source in options.sources.items():
        for tool, quantise in TOOLS.items():
            out = options.work / f"{name}-{tool.replace(' ', '-')}"
            if not (out / "config.json").exists():
                quantise(source, out)
            if not tool.startswith("ModelOpt"):
                windows = windows_of(source, options)
                rows.append({"model": name, "tool": tool, **measure(out, windows)})
                print(rows[-1], flush=True)
    packages = ("torch", "transformers", "llmcompressor", "compressed-tensors", "torchao")
    write(options.results, (*packages, "auto-round", "nvidia-modelopt"), rows)


@torch.no_grad()
def measure(model: Path, windows: Tensor) -> dict[str, float]:
    """NLL per token on the test text, recall at 63 pairs, and MiB of weights."""
    loaded = load(model).eval()
    total = 0.0
    for rows in torch.split(windows, 8):
        logits = loaded(input_ids=rows).logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        total += float(loss) * len(rows)
    size = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    return {
        "nll": round(total / len(windows), 5),
        "recall": round(mqar.accuracy(loaded, PAIRS, rows=ROWS), 4),
        "mib": round(size / 2**20, 2),
    }


def load(source: Path, **options: Any) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16, **options)


def unquantised(source: Path, out: Path) -> None:
    """The model itself, in bfloat16."""
    save(load(source), source, out)


def llmcompressor(**scheme: Any) -> Callable[[Path, Path], None]:
    """A scheme of llm-compressor; `lm_head` and small gates stay in 16 bits."""

    def quantise(source: Path, out: Path) -> None:
        from llmcompressor import oneshot
        from llmcompressor.modifiers.quantization import QuantizationModifier

        model = load(source)
        ignore = ["lm_head", "re:.*in_proj_[ab]$"]
        oneshot(model=model, recipe=QuantizationModifier(ignore=ignore, **scheme))
        save(model, source, out)

    return quantise


def torchao(source: Path, out: Path) -> None:
    """INT8 weights by torchao."""
    from torchao.quantization import Int8WeightOnlyConfig
    from transformers import TorchAoConfig

    config = TorchAoConfig(Int8WeightOnlyConfig(version=2))
    save(load(source, quantization_config=config), source, out)


def autoround(source: Path, out: Path) -> None:
    """W4A16 by AutoRound without tuning, in compressed-tensors' format."""
    from auto_round import AutoRound
    from transformers import AutoTokenizer

    model = load(source)
    tokenizer = AutoTokenizer.from_pretrained(source)
    rounding = AutoRound(
        model, tokenizer, scheme="W4A16", group_size=GROUP, iters=0, disable_opt_rtn=True
    )
    _, written = rounding.quantize_and_save(f"{out}.parent", format="auto_round")
    Path(written[0] if isinstance(written, list) else written).rename(out)


def modelopt(config: str) -> Callable[[Path, Path], None]:
    """A scheme of ModelOpt; random tokens calibrate its scales of activations."""

    def quantise(source: Path, out: Path) -> None:
        import modelopt.torch.quantization as quantization
        from modelopt.torch.export import export_hf_checkpoint
        from transformers import AutoTokenizer

        model = load(source)
        ids = torch.randint(model.config.vocab_size, (4, 64))
        quantization.quantize(
            model, getattr(quantization, config), lambda model: model(input_ids=ids)
        )
        export_hf_checkpoint(model, export_dir=out)
        AutoTokenizer.from_pretrained(source).save_pretrained(out)

    return quantise


def save(model: Any, source: Path, out: Path) -> None:
    """Write the model and its tokenizer."""
    from transformers import AutoTokenizer

    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source).save_pretrained(out)


_INT4_GROUPS = {
    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP,
}  # fmt: skip
TOOLS: dict[str, Callable[[Path, Path], None]] = {
    "none": unquantised,
    "llm-compressor FP8 dynamic": llmcompressor(targets="Linear", scheme="FP8_DYNAMIC"),
    "llm-compressor W4A16": llmcompressor(
        config_groups={"group_0": {"targets": ["Linear"], "weights": _INT4_GROUPS}}
    ),
    "llm-compressor NVFP4": llmcompressor(targets="Linear", scheme="NVFP4A16"),
    "torchao INT8": torchao,
    "AutoRound W4A16": autoround,
    "ModelOpt FP8": modelopt("FP8_DEFAULT_CFG"),
    "ModelOpt NVFP4": modelopt("NVFP4_DEFAULT_CFG"),
}


def run_gguf() -> None:
    """Measure both models, in float32 and by every type, and write one row for each."""
    root = Path(__file__).parents[1]
    sys.path.insert(0, str(root / "src" / "statetrim" / "verification" / "drivers"))
    sys.path.insert(0, str(root / "tools" / "engines" / "in_llamacpp"))
    from ask_llamacpp import convert
    from convert_and_quantise import quantise

    options, rows = parse("results/quantise-gguf.json", windows=40), []
    for name, source in options.sources.items():
        windows, plain = windows_of(source, options), options.work / f"{name}.gguf"
        if not plain.exists():
            convert(source, plain, "float32", Path(sys.prefix, "llama.cpp/convert_hf_to_gguf.py"))
        for kind in ("F32", *GGUF_TYPES):
            path = plain if kind == "F32" else options.work / f"{name}-{kind}.gguf"
            if kind != "F32":
                quantise(plain, path, kind)
            rows.append({"model": name, "type": kind, **measure_gguf(path, windows)})
            print(rows[-1], flush=True)
    write(options.results, ("cyllama", "xllamacpp", "gguf", "torch", "transformers"), rows)


def measure_gguf(path: Path, windows: Tensor) -> dict[str, Any]:
    """NLL per token, recall at 63 pairs, MiB of the file, and how many tensors have which type."""
    from cyllama.llama import llama_cpp
    from gguf import GGUFReader

    parameters = llama_cpp.LlamaContextParams()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = max(windows.shape[1], 4 * PAIRS)
    parameters.n_threads = parameters.n_threads_batch = 1
    model = llama_cpp.LlamaModel(str(path), llama_cpp.LlamaModelParams(), verbose=False)
    vocabulary = int(model.get_vocab().n_vocab)
    # cyllama 0.2.18 reads logits by an attribute that its class lacks.
    type(model).n_vocab = vocabulary
    context = llama_cpp.LlamaContext(model, parameters, verbose=False)

    def read(ids: Tensor, positions: Tensor) -> Tensor:
        """Logits [positions, vocabulary] of a sequence that is read from an empty state."""
        context.kv_cache_clear()
        batch = llama_cpp.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
        batch.set_batch(ids.tolist(), 0, True)
        context.decode(batch)
        return torch.tensor([context.get_logits_ith(int(position)) for position in positions])

    total = 0.0
    for window in windows:
        logits = read(window, torch.arange(len(window) - 1))
        total += float(torch.nn.functional.cross_entropy(logits, window[1:]))
    ids, positions = mqar.batch(vocabulary, PAIRS, ROWS, torch.Generator().manual_seed(1234))
    correct = 0
    for row in ids:
        correct += int((read(row, positions).argmax(-1) == row[positions + 1]).sum())
    return {
        "nll": round(total / len(windows), 5),
        "recall": round(correct / (ROWS * PAIRS), 4),
        "mib": round(path.stat().st_size / 2**20, 2),
        "tensors": dict(Counter(tensor.tensor_type.name for tensor in GGUFReader(path).tensors)),
    }


def run_check() -> None:
    """Run what the results lack, and write them after every row."""
    options = study_parser(
        __doc__, "work", "text", "tools", "llamacpp", results="results/quantise-check.json"
    ).parse_args()
    rows: dict[str, Any] = {}
    if options.results.exists():
        rows = json.loads(options.results.read_text())
    steps: dict[str, tuple[Callable[..., dict[str, Any]], ...]] = {}
    steps |= {tool.replace(" ", "-"): (evaluate, verify_in_transformers) for tool in TOOLS}
    steps |= {kind: (verify_in_llamacpp,) for kind in ("F32", "Q8_0", "Q4_K_M")}
    for name, checks in steps.items():
        if name not in rows:
            rows[name] = {
                step.__name__.split("_")[0]: outcome(step, name, options) for step in checks
            }
            print(json.dumps(rows[name], indent=1), flush=True)
            options.results.write_text(json.dumps(rows, indent=2) + "\n")


def outcome(step: Callable[..., dict[str, Any]], name: str, options: Any) -> dict[str, Any]:
    """What the step gave, or the sentence with which it was refused, without the directory."""
    import statetrim as st

    try:
        return step(name, options)
    except st.StatetrimError as refusal:
        return {"refused": str(refusal).replace(f"{options.work}/", "")}


def evaluate(tool: str, options: Any) -> dict[str, Any]:
    """Perplexity, and KL divergence from the original in 16 bits."""
    import statetrim as st

    baseline = options.work / "original-none"
    models = [options.work / f"{name}-{tool}" for name in ("original", "cut")]
    models = [model for model in models if model != baseline]
    scores = st.evaluate(models, baseline=baseline, text=options.text, **SCORED).scores
    return {f"{score.model} {score.metric}": round(score.value, 5) for score in scores}


def verify_in_transformers(tool: str, options: Any) -> dict[str, Any]:
    return verified(
        tool, options, engine="transformers", engine_python=options.tools, dtype="bfloat16"
    )


def verify_in_llamacpp(kind: str, options: Any) -> dict[str, Any]:
    """The 16-bit models, converted and quantised on the way into llama.cpp."""
    folder = options.llamacpp.parents[1] / "llama.cpp"
    converter = "convert_hf_to_gguf.py" if kind == "F32" else "convert_and_quantise.py"
    os.environ["LLAMA_FILE_TYPE"] = kind
    return verified(
        "none", options, engine="llamacpp", engine_python=options.llamacpp, dtype="float32",
        engine_options={"converter": str(folder / converter)},
    )  # fmt: skip


def verified(tool: str, options: Any, **engine: Any) -> dict[str, Any]:
    """Share of equal choices by model and kind of text, refusals and faults."""
    import statetrim as st

    original, cut = (options.work / f"{name}-{tool}" for name in ("original", "cut"))
    verification = st.verify(cut, baseline=original, text=options.text, **engine, **VERIFIED)
    shares = {f"{row.model}, {row.kind}": round(row.share(), 4) for row in verification.agreements}
    result: dict[str, Any] = {"engine": verification.version, "agreed": shares}
    return result | {"refusals": verification.refusals, "faults": verification.faults}


def losses(rows: list[Row], key: str, plain: str) -> list[list[str]]:
    """Lines of NLL and recall, and of nats that cut, quantiser and both lose against the original.

    `key` names the field with the tool; `plain` is its value for unquantised models.
    """
    by_model = {(row["model"], row[key]): row for row in rows}
    original, cut = by_model["original", plain], by_model["cut", plain]
    lines = []
    for tool in dict.fromkeys(row[key] for row in rows):
        pair = [by_model[name, tool] for name in ("original", "cut")]
        scores = [f"{row['nll']:.4f}, {100 * row['recall']:.1f} %" for row in pair]
        by_quantiser, both = (row["nll"] - original["nll"] for row in pair)
        on_cut = pair[1]["nll"] - cut["nll"]
        if tool == plain:
            lines.append([tool, *scores, "", "", f"{both:+.4f}"])
        else:
            lines.append([tool, *scores, f"{by_quantiser:+.4f}", f"{on_cut:+.4f}", f"{both:+.4f}"])
    return lines


def checks(rows: dict[str, Row]) -> list[list[str]]:
    """Lines of perplexities by `evaluate`, and of shares of equal choices by `verify`."""
    lines = []
    for tool, steps in rows.items():
        line = [tool.replace("-", " ").replace("llm compressor", "llm-compressor")]
        evaluated = steps.get("evaluate")
        if evaluated is None:
            line += ["n/a", "n/a"]
        elif "refused" in evaluated:
            line += ["refused", "refused"]
        else:
            for name in ("original", "cut"):
                line.append(f"{evaluated[f'{name}-{tool} perplexity']:.2f}")
        lines.append(line + [share(steps["verify"], name) for name in ("original", "cut")])
    return lines


def share(verified: Row, name: str) -> str:
    """Equal choices in texts and continuations, in percent; "refused" if it did not run."""
    shares = []
    for label, value in verified.get("agreed", {}).items():
        if label.startswith(name):
            shares.append(f"{100 * value:.1f} %")
    return ", ".join(shares) or "refused"


def sentences(rows: dict[str, Row]) -> str:
    """The distinct sentences of refusals, without names of checkpoints."""
    refusals: list[str] = []
    for steps in rows.values():
        for step in steps.values():
            refusals += [step["refused"]] if "refused" in step else []
            refusals += step.get("refusals", {}).values()
    cleaned = [re.sub(r"\b(original|cut)-\S+", "MODEL", text) for text in refusals]
    return "\n".join(f"- `{text.replace('`', '')}`" for text in dict.fromkeys(cleaned))


def page(results: Path) -> None:
    tools, gguf, checked = (
        json.loads((results / f"quantise-{name}.json").read_text())
        for name in ("cut", "gguf", "check")
    )
    header = ["", "original", "cut", "lost by the quantiser", "on the cut"]
    lines = losses(tools["rows"], "tool", "none") + losses(gguf["rows"], "type", "F32")
    check_header = ["", "perplexity, original", "cut", "verified, original", "cut"]
    contents = {
        "quantisers": table([*header, "by cut and quantiser"], lines),
        "checks": f"{table(check_header, checks(checked))}\n\n{sentences(checked)}",
    }
    fill(results / "quantised.md", contents)


if __name__ == "__main__":
    start(page, tools=run_tools, gguf=run_gguf, check=run_check)
