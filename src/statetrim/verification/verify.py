"""Cuts + original -> Verification: all run in a real engine, and transformers judges.

First what needs no engine: a cut's config, weights and tokenizer against the original's. Then the
engine reads texts and continues prompts with every model, and transformers is given the same
tokens. A cut must agree with it as well as the original does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..artifacts.verification import Verification
from ..errors import StatetrimError
from ..progress import OnProgress, Progress, ignore_progress
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint, as_checkpoints, short_names
from ..version import __version__
from . import provenance
from .engine import NAMES, Answer, Engine, EngineFailed, Request, ask, find_engine
from .judge import Chosen, judge
from .questions import Ids, Questions

WORSE = 1.0  # points by which a cut may agree less than its original, besides chance
FAR = 5.0  # points by which an engine may agree less than its dtype explains
DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def verify(
    models: ModelLike | Sequence[ModelLike],
    *,
    baseline: ModelLike,
    engine: str,
    python: str | Path,
    text: str | Path,
    count: int = 24,
    length: int = 200,
    generate: int = 32,
    skip: int = 0,
    dtype: str | None = None,
    options: Mapping[str, Any] | None = None,
    seconds: float = 3600.0,
    progress: OnProgress = ignore_progress,
) -> Verification:
    """Run `models` and the `baseline` they were cut from in `engine`: mlx, vllm or llamacpp.

    `python` is the executable of the engine's environment. Every model reads `count` sequences of
    `length` tokens of `text`, and continues the first half of each by `generate` tokens. `dtype`
    None is the stored one, in vLLM bfloat16. `options` go to the engine. The time limit for each
    model is `seconds`. Problems are listed in the result's `faults`.
    """
    kind = find_engine(engine)
    if not seconds > 0:
        raise StatetrimError(f"an engine needs some seconds for a model, not {seconds:g}")
    if min(count, generate) < 1 or length < 4:
        raise StatetrimError(
            f"there is nothing to compare in {count} sequences of {length} tokens continued by "
            f"{generate}; take at least one of four, continued by one"
        )
    checkpoints = [require_prunable(as_checkpoint(baseline)), *as_checkpoints(models)]
    found = Verification(
        engine=kind,
        version="",
        dtype=dtype or _usual_dtype(kind, checkpoints[0]),
        models=short_names(checkpoints),
        lineage={
            "statetrim": __version__,
            "models": [checkpoint.fingerprint for checkpoint in checkpoints],
            "options": dict(options or {}),
        },
    )
    if found.dtype not in DTYPES.values():
        raise StatetrimError(f"dtype is one of {', '.join(DTYPES.values())}, not {found.dtype!r}")
    asked = Questions(checkpoints[0], text, count, length, skip)
    found.lineage["text"] = asked.lineage
    run = _Run(found, kind, Path(python), asked, generate, dict(options or {}), seconds)
    for number, (name, model) in enumerate(zip(found.models, checkpoints, strict=True)):
        label = f"{NAMES[kind]} runs {name}, and transformers reads the same"
        progress(Progress(number, len(checkpoints), "settings", label))
        faults, notes = found.faults.setdefault(name, []), found.notes.setdefault(name, [])
        if number:
            faults.extend(_checkpoint_faults(checkpoints[0], model, notes))
        if faults:
            notes.append(f"not started in {NAMES[kind]}: the checkpoint itself is at fault")
            continue
        own = asked.encoded_by(model)
        if number:
            faults.extend(_encoding_faults(asked.encoded, own, "its tokenizer", "the original's"))
        run.ask(name, model, own)
        faults.extend(_engine_faults(found, name, NAMES[kind]))
    return replace(
        found,
        version=run.version,
        faults={name: faults for name, faults in found.faults.items() if faults},
        notes={name: notes for name, notes in found.notes.items() if notes},
    )


class _Run:
    """One engine, asked the same of every model; what it answers is added to `found`."""

    def __init__(
        self,
        found: Verification,
        engine: Engine,
        python: Path,
        asked: Questions,
        generate: int,
        options: dict[str, Any],
        seconds: float,
    ) -> None:
        self.found, self.engine, self.python, self.asked = found, engine, python, asked
        self.generate, self.options, self.seconds = generate, options, seconds
        self.version = ""

    def ask(self, name: str, model: Checkpoint, encoded: Ids) -> None:
        request = Request(
            model=str(model.path.resolve()),
            dtype=self.found.dtype,
            texts=self.asked.texts,
            sequences=self.asked.sequences,
            prompts=self.asked.prompts,
            generate=self.generate,
            options=self.options,
        )
        try:
            answer = ask(self.engine, self.python, request, self.seconds)
        except EngineFailed as failure:
            self.found.refusals[name] = str(failure)
            return
        self.version = answer.engine
        if answer.encoded is None:
            self.found.notes[name].append(f"{NAMES[self.engine]} does not know its tokenizer")
        else:
            whose = f"{NAMES[self.engine]}'s tokenizer of it"
            self.found.faults[name].extend(
                _encoding_faults(encoded, answer.encoded, whose, "transformers'")
            )
        dtype = getattr(torch, self.found.dtype)
        self.found.agreements.extend(judge(model, name, dtype, _chosen(request, answer)))


def _checkpoint_faults(original: Checkpoint, cut: Checkpoint, notes: list[str]) -> Iterator[str]:
    """What is wrong with the files of a cut, by its own plan and the original."""
    plan = provenance.plan_of(cut)
    if plan is None:
        notes.append("it carries no plan, so its weights were not compared with the original's")
    elif plan.lineage.get("source") != original.digest:
        notes.append("its plan is of another model, so its weights were not compared")
    else:
        wrong = list(provenance.config_faults(original, cut, plan))
        yield from wrong
        if not wrong:
            yield from provenance.weight_faults(original, require_prunable(cut), plan)


def _encoding_faults(expected: Ids, found: Ids, whose: str, beside: str) -> Iterator[str]:
    other = sum(list(one) != list(two) for one, two in zip(expected, found, strict=True))
    if other:
        yield f"{whose} gives other tokens than {beside} for {other} of {len(expected)} texts"


def _chosen(request: Request, answer: Answer) -> list[Chosen]:
    said = [
        [*prompt, *tokens]
        for prompt, tokens in zip(request.prompts, answer.continuations, strict=True)
    ]
    return [
        Chosen("texts", request.sequences, 1, answer.choices, answer.log_probabilities),
        Chosen("continuations", said, len(request.prompts[0]), answer.continuations),
    ]


def _engine_faults(found: Verification, name: str, engine: str) -> Iterator[str]:
    """What is wrong with a model by what the engine did."""
    if name in found.refusals:
        alike = "" if name == found.models[0] else ", nor the original"
        alone = found.models[0] not in found.refusals
        yield f"{engine} does not run it{'' if alone else alike}: {found.refusals[name]}"
    for kind in found.kinds:
        agreement, moved = found.find(name, kind), None
        if agreement is None:
            continue
        share, own = agreement.share("agreed_float32"), agreement.share("own")
        if 100 * (own - share) > FAR:
            yield (
                f"{engine} chooses as transformers in float32 at only {100 * share:.1f} % of the "
                f"places in {kind}, where {found.dtype} itself does at {100 * own:.1f} %"
            )
        if name != found.models[0]:
            moved = found.agreement_change(name, kind)
        if moved is not None and moved.high < 0 and moved.estimate < -WORSE:
            yield (
                f"{engine} agrees with transformers less than on the original in {kind}: "
                f"{moved.estimate:+.2f} points ({moved.low:+.2f} to {moved.high:+.2f})"
            )


def _usual_dtype(engine: Engine, model: Checkpoint) -> str:
    if engine == "vllm":
        return "bfloat16"
    stored = {model.tensors[name][1].dtype for name in model.channel_rows}
    return next((DTYPES[name] for name in sorted(stored) if name in DTYPES), "float32")
