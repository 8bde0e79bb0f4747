"""The demo's model, and the demo and the quickstart's `trim` with several seeds.

    python studies/demo.py tokenizer FOLDER
    python studies/demo.py pack TRAINED src/statetrim/pipelines/demo/model
    python studies/demo.py run --seeds 0 1 2 3 4 5 6 7 8 9
    python studies/demo.py page

`tokenizer`: a token is an ASCII character, its id the code. Keys of recall sequences are then
digits and punctuation, values are capital letters, and fillers are small letters; other characters
are left out. `pack` writes a model that train_tiny.py trained as it lies in the package: 16 bits,
in the layout of the hub. `run`: a seed orders the text and draws recall sequences and random
channels. Sizes and steps of the story were chosen on seeds above 100. results/demo.json has an
entry per seed; what it has already is not run again.
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import shlex
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file, save_file

from runner import fill, start, study_parser
from statetrim.artifacts.analysis import Analysis
from statetrim.artifacts.scores import Scores
from statetrim.commands.app import app
from statetrim.commands.demo import muted, run_story
from statetrim.judging.losses import task_losses
from statetrim.judging.verdict import Verdict
from statetrim.pipelines.demo.material import write_model, write_text
from statetrim.pipelines.demo.story import ORIGINAL, RANDOM, scenes
from statetrim.serving.deployment import ship_verdict, ship_verdicts
from statetrim.storage.checkpoint import open_checkpoint
from statetrim.tasks import recall

QUICKSTART = Path(__file__).parents[1] / "docs" / "quickstart.md"
END = "<|endoftext|>"  # Qwen's: transformers adds it if it is missing
UNUSED_MERGE = ("\x00", "\x01")  # llama.cpp wants a merge
COPIED = ("tokenizer.json", "tokenizer_config.json", "training.json")


def make_tokenizer() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    parser = argparse.ArgumentParser(description="Write the tokenizer of the demo's model.")
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def name(character: str) -> str:
        """What byte-level tokenizers call a character; a space is Ġ."""
        return str(by_byte.pre_tokenize_str(character)[0][0])

    merge = (name(UNUSED_MERGE[0]), name(UNUSED_MERGE[1]))
    # The end of text comes last, so that the plain tokens and the vocabulary have equal quarters.
    names = [*(name(chr(code)) for code in range(128)), "".join(merge), END]
    vocabulary = {token: index for index, token in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[merge]))
    tokenizer.pre_tokenizer = by_byte
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(out)


def pack() -> None:
    parser = argparse.ArgumentParser(description="Write a trained model as it lies in the package.")
    parser.add_argument("trained", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    trained, out = options.trained, options.out
    out.mkdir(parents=True, exist_ok=True)
    weights = {}
    for name, tensor in load_file(trained / "model.safetensors").items():
        weights[name] = tensor.to(torch.bfloat16)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config = nested_config(json.loads((trained / "config.json").read_text()))
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    for name in COPIED:
        shutil.copy(trained / name, out / name)


def nested_config(text: dict[str, object]) -> dict[str, object]:
    """The config as published checkpoints have it, which is the one that MLX-LM reads."""
    first_softmax_layer = list(text["layer_types"]).index("full_attention")  # type: ignore[call-overload]
    text = {name: value for name, value in text.items() if name != "architectures"}
    text |= {"dtype": "bfloat16", "full_attention_interval": first_softmax_layer + 1}
    text["eos_token_id"] = int(str(text["vocab_size"])) - 1  # of `tokenizer`
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "text_config": text,
        "vision_config": {"depth": 1, "hidden_size": 16, "num_heads": 2},
    }


def run() -> None:
    parser = study_parser(__doc__, results="results/demo.json")
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    options = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    entries: dict[str, Any] = {}
    if options.results.exists():
        entries = json.loads(options.results.read_text())
    stock = recall.associations
    for seed in options.seeds:
        entry = entries.setdefault(str(seed), {})
        for name, measure in (("demo", run_demo), ("recovered", run_recovery), ("trim", run_trim)):
            if name in entry:
                continue
            # `evaluate` has no seed: everybody measures the same sequences.
            seeded = mock.patch.object(recall, "associations", partial(stock, seed=seed))
            with tempfile.TemporaryDirectory() as folder, chdir(folder), seeded:
                began, cpu_began = time.monotonic(), time.process_time()
                entry[name] = measure(seed)
                entry[name]["seconds"] = round(time.monotonic() - began)
                entry[name]["cpu_seconds"] = round(time.process_time() - cpu_began)
            options.results.write_text(json.dumps(entries, indent=1))
            verdicts = [model["verdict"] for model in entry[name]["models"].values()]
            print(f"seed {seed}, {name}: {verdicts}; {entry[name]['seconds']} s", flush=True)


def run_demo(seed: int) -> dict[str, Any]:
    """What the demo's story shows."""
    out = Path("demo")
    run_story(out, seed=seed, on_step=lambda line: None)
    scores, used = Scores.load(out / "scores.json"), Analysis.load(out / "analysis.json")
    cuts = [out / name for name in scores.models[1:]]
    verdicts = {verdict.model: verdict for verdict in ship_verdicts(scores, cuts)}
    models = {name: measured(scores, name, verdicts.get(name)) for name in scores.models}
    return {"used": round(float(used.mean_utilization.nanmean()), 3), "models": models}


def run_recovery(seed: int) -> dict[str, Any]:
    """What is left of the loss of QUARTER after the recovery that the demo proposes."""
    write_model(Path(ORIGINAL))
    write_text(Path("text.jsonl"), seed)
    *_, (recover, evaluate, *_) = scenes(seed).values()
    commands = [
        *calibrate_and_cut(["QUARTER", RANDOM], seed),
        f"{recover} --seed {seed}",
        evaluate.replace("RECOVERED", f"RECOVERED {RANDOM}"),
    ]
    with muted(True):
        for command in commands:
            app(shlex.split(command), standalone_mode=False)
    scores, name = Scores.load(Path("recovered.json")), "RECOVERED"
    verdict = ship_verdict(scores, name, open_checkpoint(Path(name)))
    return {"models": {name: measured(scores, name, verdict)}}


def calibrate_and_cut(names: Sequence[str], seed: int) -> list[str]:
    """The demo's commands that make these cuts."""
    *story, _ = scenes(seed).values()
    own = [f"calibrate {ORIGINAL} "]
    for name in names:
        own += [f" {name}.json", f" {name}-"]
    commands = [command for scene in story for command in scene]
    return [command for command in commands if any(part in command for part in own)]


def run_trim(seed: int) -> dict[str, Any]:
    """What `trim` finds, as the quickstart calls it, with a seed."""
    write_model(Path("MODEL"))
    write_text(Path("text.jsonl"), seed)
    (command,) = re.findall(r"^\$ statetrim (trim .*OUT)$", QUICKSTART.read_text(), flags=re.M)
    with muted(True):
        app([*shlex.split(command), "--seed", str(seed)], standalone_mode=False)
    scores, cut = Scores.load(Path("OUT/statetrim/scores.json")), open_checkpoint(Path("OUT"))
    models = {}
    original, final = scores.models[:2]
    for label, name in (("MODEL", original), ("OUT", final), ("rand", "rand")):
        verdict = ship_verdict(scores, name, cut) if name == final else None
        models[label] = measured(scores, name, verdict)
    return {"shape": cut.geometry.shape.replace(" x ", "x"), "models": models}


def measured(scores: Scores, name: str, verdict: Verdict | None) -> dict[str, Any]:
    """The figures of one model, with the intervals of what it lost."""
    lost = {}
    for loss in task_losses(scores, name) if name != scores.baseline else ():
        interval = (loss.loss.estimate, loss.loss.low, loss.loss.high)
        lost[loss.task] = [round(bound, 3) for bound in interval]
    return {
        "perplexity": round(scores.find(name, "text", "perplexity").value, 4),
        "recall": round(scores.find(name, "mqar", "accuracy").value, 4),
        "lost": lost,
        "verdict": verdict and str(verdict.outcome),
    }


def demo_table(entries: dict[str, Any]) -> str:
    """A row per model: smallest, mean and largest figure over the seeds, and its verdicts."""
    demos = [{**entry["demo"]} for entry in entries.values()]
    for demo, entry in zip(demos, entries.values(), strict=True):
        demo["models"] = {**demo["models"], **entry["recovered"]["models"]}
    lines = ["| model | perplexity, % lost | recall, % | verdict |"]
    lines.append("| --- | ---: | ---: | --- |")
    for name in demos[0]["models"]:
        models = [demo["models"][name] for demo in demos]
        lost = [model["lost"].get("text", [0.0])[0] for model in models]
        recall = [100 * model["recall"] for model in models]
        verdicts = Counter(model["verdict"] for model in models if model["verdict"])
        judged = ", ".join(f"{verdict}: {count}" for verdict, count in verdicts.items())
        lines.append(f"| {name} | {spread(lost)} | {spread(recall)} | {judged} |")
    return "\n".join(lines)


def spread(figures: list[float]) -> str:
    """Smallest, mean and largest."""
    return f"{min(figures):.1f}, {mean(figures):.1f}, {max(figures):.1f}"


def trim_table(entries: dict[str, Any]) -> str:
    """A row per seed: what the cut and the random one lost."""
    lines = ["| seed | shape | perplexity, % lost | recall, points lost | random cut | verdict |"]
    lines.append("| ---: | --- | ---: | ---: | ---: | --- |")
    for seed, entry in entries.items():
        cut, control = (entry["trim"]["models"][name] for name in ("OUT", "rand"))
        cells = [interval(cut["lost"][task]) for task in ("text", "mqar")]
        cells.append(" and ".join(f"{control['lost'][task][0]:.1f}" for task in ("text", "mqar")))
        row = [seed, entry["trim"]["shape"], *cells, cut["verdict"]]
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def interval(figures: list[float]) -> str:
    """An estimate and its interval."""
    estimate, low, high = figures
    return f"{estimate:.1f} ({low:.1f}, {high:.1f})"


def page(results: Path) -> None:
    entries = json.loads((results / "demo.json").read_text())
    fill(results / "demo.md", {"demo": demo_table(entries), "trim": trim_table(entries)})


if __name__ == "__main__":
    start(page, tokenizer=make_tokenizer, pack=pack, run=run)
