"""Pre-train a small linear-attention model on local text and synthetic recall, on a CPU.

    python studies/train_tiny.py delta_net OUT --text train.jsonl --tokenizer FOLDER
    python studies/train_tiny.py gated_deltanet OUT --text train.jsonl --tokenizer FOLDER
    python studies/train_tiny.py qwen3_5 OUT --text train.jsonl --tokenizer FOLDER
    python studies/train_tiny.py qwen3_next OUT --text train.jsonl --tokenizer FOLDER
    python studies/train_tiny.py delta_net OUT --preset fixture
    python studies/train_tiny.py qwen3_5 OUT --preset demo --text train.jsonl --tokenizer FOLDER
    python studies/train_tiny.py qwen3_5 OUT --preset hybrid --text train.jsonl --tokenizer FOLDER

Recall (MQAR) starts with two pairs per sequence and adds more when the model recalls them. OUT is
an ordinary checkpoint; OUT.training holds what a later run needs to resume, until OUT exists.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoTokenizer, PreTrainedModel

import mqar
from statetrim import portable
from statetrim.portable.kernels import chunk_gated_delta_rule

KINDS = ("delta_net", "gated_deltanet", "qwen3_5", "qwen3_next")


@dataclass(frozen=True)
class Recipe:
    """What determines a run; a run can only be continued with the same recipe."""

    kind: str
    vocab_size: int = 4096
    hidden_size: int = 128
    num_heads: int = 2
    value_heads_per_key: int = 1  # of the Qwen kinds
    head_dim: int = 64
    num_layers: int = 2
    intermediate_size: int = 384
    steps: int = 900
    recall_tokens: int = 2048
    first_pairs: int = 2
    most_pairs: int = 24
    most_filler: int = 0  # random tokens between the pairs and their keys, at the most pairs
    hops: int = 1  # 2: half of the batches need two lookups, which no layer can do alone
    text_rows: int = 4
    text_length: int = 256
    learning_rate: float = 3e-3
    warmup: int = 50
    weight_decay: float = 0.01
    longest_decay_step: float = 0.1
    shortest_decay_step: float = 0.0  # above 0: steps are drawn as fla and Mamba-2 draw them
    softmax_every: int = 4  # layers, of the Qwen kinds
    softmax_from_step: int = 0  # until then softmax layers are silent, and linear ones must recall
    use_gate: bool = True
    gate_opening: float = 0.4
    shared_filters: str = ""  # convolution filters tied within each "head", or in "all" of a layer
    seed: int = 0


PRESETS = {
    "standard": {},
    # No text and a small vocabulary, to be fast enough for continuous integration.
    "fixture": {
        "vocab_size": 512,
        "hidden_size": 64,
        "head_dim": 32,
        "num_layers": 2,
        "intermediate_size": 128,
        "steps": 250,
        "recall_tokens": 1024,
        "most_pairs": 16,
        "text_rows": 0,
        "learning_rate": 5e-3,
    },
    # The model in the wheel, with the tokenizer of demo_tokenizer.py.
    "demo": {
        "vocab_size": 130,
        "value_heads_per_key": 2,
        "num_layers": 3,
        "softmax_every": 3,
        "softmax_from_step": 400,
        "intermediate_size": 192,
        "steps": 1000,
        "recall_tokens": 768,
        "most_pairs": 32,
        "most_filler": 384,
        "text_rows": 2,
        "text_length": 192,
        "longest_decay_step": 0.005,
    },
    # Long real text with less than 5 % recall, in the layout of Qwen3.5.
    "hybrid": {
        "value_heads_per_key": 3,
        "head_dim": 32,
        "num_layers": 4,
        "steps": 2000,
        "recall_tokens": 192,
        "most_pairs": 48,
        "text_length": 1024,
        "learning_rate": 2e-3,
        "longest_decay_step": 0.005,
    },
}


def build(recipe: Recipe) -> PreTrainedModel:
    torch.manual_seed(recipe.seed)
    common: dict[str, Any] = {
        "vocab_size": recipe.vocab_size,
        "hidden_size": recipe.hidden_size,
        "num_hidden_layers": recipe.num_layers,
        "intermediate_size": recipe.intermediate_size,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 0,
        "pad_token_id": None,
    }
    if recipe.kind == "delta_net":
        expand = recipe.num_heads * recipe.head_dim / recipe.hidden_size
        delta_net = portable.DeltaNetForCausalLM(
            portable.DeltaNetConfig(
                num_heads=recipe.num_heads, expand_k=expand, expand_v=expand, **common
            )
        )
        if recipe.shared_filters:
            share_filters(delta_net, {"head": recipe.num_heads, "all": 1}[recipe.shared_filters])
        return delta_net
    if recipe.kind == "gated_deltanet":
        model = portable.GatedDeltaNetForCausalLM(
            portable.GatedDeltaNetConfig(
                num_heads=recipe.num_heads,
                head_dim=recipe.head_dim,
                expand_v=1.0,
                use_gate=recipe.use_gate,
                **common,
            )
        )
        draw_decay(model, recipe.shortest_decay_step, recipe.longest_decay_step)
        open_gates(model, "g_proj.weight", recipe.gate_opening)
        return model
    if recipe.kind in ("qwen3_5", "qwen3_next"):
        return qwen(recipe, common)
    raise ValueError(f"kind {recipe.kind!r} is not one of {', '.join(KINDS)}.")


def share_filters(model: nn.Module, groups: int) -> None:
    """Tie the filters of all channels in each of `groups` equal groups of a convolution.

    The checkpoint has ordinary, equal rows: they start equal, and all rows of a group get the mean
    of their gradients, so that they stay equal.
    """

    def shared(filters: Tensor) -> Tensor:  # [channels, 1, width]
        parts = filters.view(groups, -1, 1, filters.shape[-1])
        return parts.mean(1, keepdim=True).expand_as(parts).flatten(0, 1)

    for name, parameter in model.named_parameters():
        if "_conv1d.weight" in name:
            first = parameter.data.view(groups, -1, 1, parameter.shape[-1])[:, :1]
            rows = len(parameter) // groups
            parameter.data = first.expand(-1, rows, -1, -1).flatten(0, 1).clone()
            parameter.register_hook(shared)  # type: ignore[no-untyped-call]


def draw_decay(model: nn.Module, shortest: float, longest: float) -> None:
    """Limit softplus(dt_bias) to `longest`, or draw it log-uniformly from `shortest` to `longest`.

    In transformers' own classes it starts at 1.3, with which untrained heads forget at once.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("dt_bias"):
                if shortest:
                    steps = torch.empty_like(parameter).uniform_(
                        math.log(shortest), math.log(longest)
                    )
                    parameter.copy_(steps.exp().expm1().log())
                else:
                    parameter.clamp_(max=math.log(math.expm1(longest)))


def open_gates(model: PreTrainedModel, gate: str, opening: float) -> None:
    """Initialise every output gate to be open.

    Output gates have no bias: with the usual initialisation silu(gate) is near 0 with a random
    sign, which blocks outputs and gradients. Here one channel of the embeddings has the same value
    for all tokens, and the gates read it.
    """
    if opening == 0:
        return
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 5 * model.config.initializer_range
        for name, parameter in model.named_parameters():
            if name.endswith(gate):
                parameter[:, 0] = opening


def qwen(recipe: Recipe, common: dict[str, object]) -> PreTrainedModel:
    """A Qwen layout in transformers' own class: three linear layers to one softmax layer."""
    # transformers takes fla's kernels whenever fla can be imported, and they cannot run on a CPU.
    sys.modules["fla"] = sys.modules["causal_conv1d"] = None  # type: ignore[assignment]
    from transformers import AutoConfig, AutoModelForCausalLM

    new = recipe.kind == "qwen3_5"
    config = AutoConfig.for_model(
        "qwen3_5_text" if new else "qwen3_next",
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        head_dim=recipe.hidden_size // recipe.num_heads,
        linear_num_key_heads=recipe.num_heads,
        linear_num_value_heads=recipe.num_heads * recipe.value_heads_per_key,
        linear_key_head_dim=recipe.head_dim,
        linear_value_head_dim=recipe.head_dim,
        full_attention_interval=recipe.softmax_every,
        max_position_embeddings=2048,
        **({} if new else {"num_experts": 0}),  # routing changes would hide the compared effects
        **common,
    )
    model = AutoModelForCausalLM.from_config(config)
    draw_decay(model, recipe.shortest_decay_step, recipe.longest_decay_step)
    if new:  # in Qwen3-Next the gates are in one tensor with q, k and v
        open_gates(model, "in_proj_z.weight", recipe.gate_opening)
        take_fast_kernel()
    if recipe.softmax_from_step:
        with torch.no_grad():
            for projection in softmax_outputs(model):
                projection.zero_()
    return model


def softmax_outputs(model: nn.Module) -> list[nn.Parameter]:
    """The output projections of the softmax layers."""
    return [p for name, p in model.named_parameters() if name.endswith("self_attn.o_proj.weight")]


def take_fast_kernel() -> None:
    """Let Qwen3.5 train by our chunked kernel, which is faster on a CPU than transformers' own."""
    from transformers.models.qwen3_5 import modeling_qwen3_5

    def kernel(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Any:
        names = ("g", "beta", "initial_state", "output_final_state", "use_qk_l2norm_in_kernel")
        known = {name: options[name] for name in names}
        return chunk_gated_delta_rule(query, key, value, **known)

    modeling_qwen3_5.torch_chunk_gated_delta_rule = kernel


class Text:
    """Random windows of a text's token ids."""

    def __init__(self, path: Path, tokenizer_folder: Path, megabytes: float) -> None:
        tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
        end = [tokenizer.eos_token_id or 0]
        pieces, room = [], int(megabytes * 1e6)
        for document in self._documents(path):
            pieces.append(document[:room])
            room -= len(document)
            if room <= 0:
                break
        ids = tokenizer(pieces, add_special_tokens=False)["input_ids"]
        self.ids = torch.tensor([token for row in ids for token in row + end])

    @staticmethod
    def _documents(path: Path) -> Iterator[str]:
        if path.suffix != ".jsonl":
            yield path.read_text()
            return
        with path.open() as lines:
            for line in lines:
                yield json.loads(line)["text"]

    def batch(self, rows: int, length: int, generator: torch.Generator) -> Tensor:
        """Random windows, int64 [rows, length]."""
        starts = torch.randint(len(self.ids) - length, (rows, 1), generator=generator)
        return self.ids[starts + torch.arange(length)]


class Run:
    """A training run: model, optimizer, progress, and its saved state on disk."""

    def __init__(self, recipe: Recipe, out: Path, text: Text | None) -> None:
        self.recipe, self.text = recipe, text
        self.model = build(recipe)
        decayed = [p for p in self.model.parameters() if p.dim() == 2]
        others = [p for p in self.model.parameters() if p.dim() != 2]
        groups: list[dict[str, Any]] = [{"params": decayed}]
        groups.append({"params": others, "weight_decay": 0.0})
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=recipe.learning_rate,
            betas=(0.9, 0.98),
            weight_decay=recipe.weight_decay,
        )
        self.generator = torch.Generator().manual_seed(recipe.seed)
        self.step, self.pairs, self.seconds = 0, recipe.first_pairs, 0.0
        self.recent_accuracy = 0.0
        self.folder = out.with_name(out.name + ".training")

    def advance(self) -> dict[str, float]:
        """One optimizer step; returns losses, number of pairs and accuracy, to be shown."""
        self.model.train()
        progress = self.step / self.recipe.steps
        warm = min(1.0, (self.step + 1) / self.recipe.warmup)
        for group in self.optimizer.param_groups:
            cosine = 0.5 * (1 + math.cos(math.pi * progress))
            group["lr"] = self.recipe.learning_rate * warm * max(cosine, 0.02)
        shown = {"recall_loss": self._recall_backward()}
        if self.text is not None:
            shown["text_loss"] = self._text_backward()
        if self.step < self.recipe.softmax_from_step:
            for projection in softmax_outputs(self.model):
                projection.grad = None
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return {**shown, "pairs": self.pairs, "accuracy": self.recent_accuracy}

    def _recall_backward(self) -> float:
        # Half of the batches have the most pairs; the others keep recall of fewer pairs.
        frontier = torch.rand((), generator=self.generator) < 0.5
        easier_pairs = int(
            torch.randint(self.recipe.first_pairs, self.pairs + 1, (), generator=self.generator)
        )
        pairs = self.pairs if frontier else easier_pairs
        two_hops = self.recipe.hops == 2 and torch.rand((), generator=self.generator) < 0.5
        filler = 0 if two_hops else self._draw_filler()
        rows = max(1, self.recipe.recall_tokens // ((6 if two_hops else 4) * pairs + filler))
        vocabulary, generator = self.recipe.vocab_size, self.generator
        if two_hops:
            ids, query_positions = mqar.two_hop_batch(vocabulary, pairs, rows, generator)
        else:
            ids, query_positions = mqar.batch(vocabulary, pairs, rows, generator, filler)
        logits, target = (
            mqar.query_logits(self.model, ids, query_positions),
            ids[:, query_positions + 1],
        )
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        if pairs == self.pairs and (two_hops or self.recipe.hops == 1):
            accuracy = float((logits.argmax(-1) == target).float().mean())
            self.recent_accuracy = 0.7 * self.recent_accuracy + 0.3 * accuracy
            if self.recent_accuracy > 0.9 and self.pairs < self.recipe.most_pairs:
                self.pairs, self.recent_accuracy = self.pairs + max(1, self.pairs // 4), 0.5
                self.pairs = min(self.pairs, self.recipe.most_pairs)
        return float(loss.detach())

    def _draw_filler(self) -> int:
        """None for half of the batches; the others have more when there are more pairs."""
        longest = self.recipe.most_filler * self.pairs // self.recipe.most_pairs
        if longest == 0 or torch.rand((), generator=self.generator) < 0.5:
            return 0
        return int(torch.randint(longest, (), generator=self.generator))

    def _text_backward(self) -> float:
        assert self.text is not None
        ids = self.text.batch(self.recipe.text_rows, self.recipe.text_length, self.generator)
        loss = self.model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return float(loss.detach())

    def save(self) -> None:
        """Save weights, optimizer and counters to a new folder, which is renamed when complete.

        It is a checkpoint without a tokenizer, so that a run can be measured before it ends.
        """
        partial = self.folder / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        weights = {name: p.detach().contiguous() for name, p in self.model.named_parameters()}
        save_file(weights, partial / "model.safetensors", {"format": "pt"})
        self.model.config.save_pretrained(partial)
        moments = {"generator": self.generator.get_state()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                moments[f"{key}:{name}"] = value.detach().contiguous()
        save_file(moments, partial / "optimizer.safetensors")
        counters = {"step": self.step, "pairs": self.pairs, "recent": self.recent_accuracy}
        counters_and_recipe = {**counters, "seconds": self.seconds, "recipe": asdict(self.recipe)}
        (partial / "place.json").write_text(json.dumps(counters_and_recipe))
        complete = self.folder / f"step-{self.step:06d}"
        shutil.rmtree(complete, ignore_errors=True)
        partial.rename(complete)
        for old in self.folder.glob("step-*"):
            if old != complete:
                shutil.rmtree(old)

    def resume(self) -> None:
        """Load the newest complete save, if there is one; raises ValueError for another recipe."""
        saves = sorted(self.folder.glob("step-*"))
        if not saves:
            return
        counters = json.loads((saves[-1] / "place.json").read_text())
        recipe = asdict(self.recipe)
        changed = [key for key in recipe if counters["recipe"].get(key) != recipe[key]]
        if changed:
            raise ValueError(
                f"{self.folder} holds a run with another {', '.join(changed)}; delete it first."
            )
        weights = load_file(saves[-1] / "model.safetensors")
        moments = load_file(saves[-1] / "optimizer.safetensors")
        self.generator.set_state(moments.pop("generator"))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(weights[name])
                keys = ("step", "exp_avg", "exp_avg_sq")
                self.optimizer.state[parameter] = {key: moments[f"{key}:{name}"] for key in keys}
        self.step, self.pairs, self.recent_accuracy = (
            counters["step"],
            counters["pairs"],
            counters["recent"],
        )
        self.seconds = counters["seconds"]


def train(run: Run, save_every: float = 60.0, log_every: int = 50) -> None:
    run.resume()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), disable=not sys.stdout.isatty()) as bar:
        task = bar.add_task("training", total=run.recipe.steps, completed=run.step)
        saved = time.monotonic()
        while run.step < run.recipe.steps:
            began = time.process_time()
            shown = run.advance()
            run.seconds += time.process_time() - began
            line = "  ".join(f"{key} {value:.3g}" for key, value in shown.items())
            bar.update(task, completed=run.step, description=line)
            if bar.disable and run.step % log_every == 0:
                print(f"step {run.step}  {run.seconds:.0f} CPU s  {line}", flush=True)
            if time.monotonic() - saved > save_every:
                run.save()
                saved = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--preset", choices=PRESETS, default="standard")
    parser.add_argument("--text", type=Path, help="a .jsonl with a field 'text', or plain text")
    parser.add_argument("--tokenizer", type=Path, help="its folder; needed with --text")
    parser.add_argument("--megabytes", type=float, default=20.0, help="of text to use")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="change the recipe"
    )
    arguments = parser.parse_args()
    if (arguments.text is None) != (arguments.tokenizer is None):
        parser.error("--text and --tokenizer go together")
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)  # weights and moments that decay to denormals slow every step
    chosen: dict[str, Any] = dict(PRESETS[arguments.preset])
    for assignment in arguments.set:
        key, _, value = assignment.partition("=")
        chosen[key] = json.loads(value)
    recipe = Recipe(arguments.kind, **chosen)
    text = None
    if arguments.text is not None:
        text = Text(arguments.text, arguments.tokenizer, arguments.megabytes)
    else:
        recipe = replace(recipe, text_rows=0)
    run = Run(recipe, arguments.out, text)
    print(f"{recipe.kind}: {sum(p.numel() for p in run.model.parameters()):,} parameters")
    train(run)
    run.model.eval()
    hops = recipe.hops
    recall = {pairs: mqar.accuracy(run.model, pairs, hops=hops) for pairs in (4, 8, 16, 24, 32)}
    print(f"{run.seconds:.0f} CPU s; recall", {pairs: round(x, 3) for pairs, x in recall.items()})
    run.model.save_pretrained(arguments.out)
    if arguments.tokenizer is not None:
        AutoTokenizer.from_pretrained(arguments.tokenizer).save_pretrained(arguments.out)
    summary = {"recipe": asdict(recipe), "seconds": run.seconds, "recall": recall}
    (arguments.out / "training.json").write_text(json.dumps(summary, indent=1))
    shutil.rmtree(run.folder, ignore_errors=True)


if __name__ == "__main__":
    main()
