"""Train the demo's tiny DeltaNet on multi-query associative recall (MQAR), on a CPU.

A sequence lists key-value pairs once, then repeats every key, after which the model must predict
its value. The recurrent state is its only memory, so pruning the state shows in recall at once.
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ..progress import OnProgress, Progress
from ..storage import json_file
from ..tasks import recall

VOCAB_SIZE = 512
FIRST_PAIRS, MAX_PAIRS = 2, 16
STEPS, TOKENS_PER_STEP, WARMUP, LEARNING_RATE = 250, 1024, 50, 5e-3
DOCUMENT_TOKENS = 4 * MAX_PAIRS + 1  # including the end-of-text token


def train(out: Path, progress: OnProgress, *, steps: int = STEPS, seed: int = 0) -> None:
    """Train a DeltaNet of two layers and save it to `out` as an ordinary checkpoint with a
    tokenizer.

    Training starts with two pairs per sequence and adds more when recall passes 90 %. Half of the
    batches have fewer pairs than the current maximum, so that the model keeps recalling those. Sets
    torch's global seed.
    """
    from ..portable import DeltaNetConfig, DeltaNetForCausalLM

    torch.manual_seed(seed)
    model = DeltaNetForCausalLM(
        DeltaNetConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=64,
            num_hidden_layers=2,
            num_heads=2,
            intermediate_size=128,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=0,
            pad_token_id=None,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    generator = torch.Generator().manual_seed(seed)
    pairs, recent_accuracy = FIRST_PAIRS, 0.0
    model.train()
    for step in range(steps):
        cosine = max(0.5 * (1 + math.cos(math.pi * step / steps)), 0.02)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (step + 1) / WARMUP) * cosine
        hardest = bool(torch.rand((), generator=generator) < 0.5)
        easier_pairs = int(torch.randint(FIRST_PAIRS, pairs + 1, (), generator=generator))
        accuracy = _train_batch(
            model,
            pairs if hardest else easier_pairs,
            int(torch.randint(2**40, (), generator=generator)),
        )
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if hardest:
            recent_accuracy = 0.7 * recent_accuracy + 0.3 * accuracy
        if recent_accuracy > 0.9 and pairs < MAX_PAIRS:
            pairs, recent_accuracy = min(pairs + max(1, pairs // 4), MAX_PAIRS), 0.5
        progress(Progress(step + 1, steps, "steps"))
    model.eval().save_pretrained(out)
    _write_tokenizer(out)


def _train_batch(model: nn.Module, pairs: int, seed: int) -> float:
    """Backpropagate one batch of recall sequences; return the share of values predicted."""
    rows = TOKENS_PER_STEP // (4 * pairs)
    ids, query_positions = recall.associations(VOCAB_SIZE, pairs, rows, seed=seed)
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state  # type: ignore[operator]
    logits = model.lm_head(hidden[:, query_positions])  # type: ignore[operator]
    loss = functional.cross_entropy(logits.flatten(0, 1), ids[:, query_positions + 1].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return float(recall.recalled_share(ids, query_positions, logits).mean())


def write_text(path: Path, documents: int, seed: int = 1) -> None:
    """Write recall sequences to a JSON Lines file, as words that the demo's tokenizer encodes."""
    ids, _ = recall.associations(VOCAB_SIZE, MAX_PAIRS, documents, seed=seed)
    lines = ""
    for row in ids.tolist():
        lines += json.dumps({"text": " ".join(f"t{token}" for token in row)}) + "\n"
    json_file.write_text(path, lines)


def _write_tokenizer(out: Path) -> None:
    """Save a word-level tokenizer in which token 7 is the word `t7`."""
    vocab = {f"t{token}": token for token in range(VOCAB_SIZE)}
    tokenizer: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"},
    }
    (out / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "t0",
        "unk_token": "t0",
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config), encoding="utf-8")
