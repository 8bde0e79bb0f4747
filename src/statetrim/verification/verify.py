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
from .engine import ENGINE_NAMES, Answer, Engine, EngineError, Request, parse_engine, run_engine
from .inputs import TokenIds, VerificationInputs
from .judge import EngineChoices, compare_choices

MAX_AGREEMENT_LOSS = 1.0  # points by which a cut may agree less than its original, besides chance
MAX_ENGINE_GAP = 5.0  # points by which an engine may agree less than its dtype explains
DTYPE_NAMES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


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
    kind = parse_engine(engine)
    if not seconds > 0:
        raise StatetrimError(f"an engine needs some seconds for a model, not {seconds:g}")
    if min(count, generate) < 1 or length < 4:
        raise StatetrimError(
            f"there is nothing to compare in {count} sequences of {length} tokens continued by "
            f"{generate}; take at least one of four, continued by one"
        )
    checkpoints = [require_prunable(as_checkpoint(baseline)), *as_checkpoints(models)]
    verification = Verification(
        engine=kind,
        version="",
        dtype=dtype or _default_dtype(kind, checkpoints[0]),
        models=short_names(checkpoints),
        lineage={
            "statetrim": __version__,
            "models": [checkpoint.fingerprint for checkpoint in checkpoints],
            "options": dict(options or {}),
        },
    )
    if verification.dtype not in DTYPE_NAMES.values():
        raise StatetrimError(
            f"dtype is one of {', '.join(DTYPE_NAMES.values())}, not {verification.dtype!r}"
        )
    inputs = VerificationInputs(checkpoints[0], text, count, length, skip)
    verification.lineage["text"] = inputs.lineage
    engine_run = _EngineRun(
        verification, kind, Path(python), inputs, generate, dict(options or {}), seconds
    )
    for number, (name, model) in enumerate(zip(verification.models, checkpoints, strict=True)):
        label = f"{ENGINE_NAMES[kind]} runs {name}, and transformers reads the same"
        progress(Progress(number, len(checkpoints), "settings", label))
        faults, notes = (
            verification.faults.setdefault(name, []),
            verification.notes.setdefault(name, []),
        )
        if number:
            faults.extend(_checkpoint_faults(checkpoints[0], model, notes))
        if faults:
            notes.append(f"not started in {ENGINE_NAMES[kind]}: the checkpoint itself is at fault")
            continue
        token_ids = inputs.encode_with(model)
        if number:
            faults.extend(
                _encoding_faults(inputs.original_ids, token_ids, "its tokenizer", "the original's")
            )
        engine_run.run_model(name, model, token_ids)
        faults.extend(_engine_faults(verification, name, ENGINE_NAMES[kind]))
    return replace(
        verification,
        version=engine_run.version,
        faults={name: faults for name, faults in verification.faults.items() if faults},
        notes={name: notes for name, notes in verification.notes.items() if notes},
    )


class _EngineRun:
    """One engine, asked the same of every model; what it answers is added to `found`."""

    def __init__(
        self,
        verification: Verification,
        engine: Engine,
        python: Path,
        inputs: VerificationInputs,
        generate: int,
        options: dict[str, Any],
        seconds: float,
    ) -> None:
        self.verification, self.engine, self.python, self.inputs = (
            verification,
            engine,
            python,
            inputs,
        )
        self.generate, self.options, self.seconds = generate, options, seconds
        self.version = ""

    def run_model(self, name: str, model: Checkpoint, token_ids: TokenIds) -> None:
        request = Request(
            model=str(model.path.resolve()),
            dtype=self.verification.dtype,
            texts=self.inputs.texts,
            sequences=self.inputs.sequences,
            prompts=self.inputs.prompts,
            generate=self.generate,
            options=self.options,
        )
        try:
            answer = run_engine(self.engine, self.python, request, self.seconds)
        except EngineError as failure:
            self.verification.refusals[name] = str(failure)
            return
        self.version = answer.engine
        if answer.encoded is None:
            self.verification.notes[name].append(
                f"{ENGINE_NAMES[self.engine]} does not know its tokenizer"
            )
        else:
            tokenizer_text = f"{ENGINE_NAMES[self.engine]}'s tokenizer of it"
            self.verification.faults[name].extend(
                _encoding_faults(token_ids, answer.encoded, tokenizer_text, "transformers'")
            )
        dtype = getattr(torch, self.verification.dtype)
        self.verification.agreements.extend(
            compare_choices(model, name, dtype, _engine_choices(request, answer))
        )


def _checkpoint_faults(original: Checkpoint, cut: Checkpoint, notes: list[str]) -> Iterator[str]:
    """What is wrong with the files of a cut, by its own plan and the original."""
    plan = provenance.load_carried_plan(cut)
    if plan is None:
        notes.append("it carries no plan, so its weights were not compared with the original's")
    elif plan.lineage.get("source") != original.digest:
        notes.append("its plan is of another model, so its weights were not compared")
    else:
        config_faults = list(provenance.config_faults(original, cut, plan))
        yield from config_faults
        if not config_faults:
            yield from provenance.weight_faults(original, require_prunable(cut), plan)


def _encoding_faults(
    expected: TokenIds, actual: TokenIds, tokenizer: str, reference: str
) -> Iterator[str]:
    differing = sum(
        list(expected_ids) != list(actual_ids)
        for expected_ids, actual_ids in zip(expected, actual, strict=True)
    )
    if differing:
        yield f"{tokenizer} gives other tokens than {reference} for {differing} of {len(expected)} texts"


def _engine_choices(request: Request, answer: Answer) -> list[EngineChoices]:
    continued = [
        [*prompt, *tokens]
        for prompt, tokens in zip(request.prompts, answer.continuations, strict=True)
    ]
    return [
        EngineChoices("texts", request.sequences, 1, answer.choices, answer.log_probabilities),
        EngineChoices("continuations", continued, len(request.prompts[0]), answer.continuations),
    ]


def _engine_faults(verification: Verification, name: str, engine: str) -> Iterator[str]:
    """What is wrong with a model by what the engine did."""
    if name in verification.refusals:
        also_original = "" if name == verification.models[0] else ", nor the original"
        original_runs = verification.models[0] not in verification.refusals
        yield f"{engine} does not run it{'' if original_runs else also_original}: {verification.refusals[name]}"
    for kind in verification.kinds:
        agreement, change = verification.find(name, kind), None
        if agreement is None:
            continue
        share, own_share = agreement.share("agreed_float32"), agreement.share("own")
        if 100 * (own_share - share) > MAX_ENGINE_GAP:
            yield (
                f"{engine} chooses as transformers in float32 at only {100 * share:.1f} % of the "
                f"places in {kind}, where {verification.dtype} itself does at {100 * own_share:.1f} %"
            )
        if name != verification.models[0]:
            change = verification.agreement_change(name, kind)
        if change is not None and change.high < 0 and change.estimate < -MAX_AGREEMENT_LOSS:
            yield (
                f"{engine} agrees with transformers less than on the original in {kind}: "
                f"{change.estimate:+.2f} points ({change.low:+.2f} to {change.high:+.2f})"
            )


def _default_dtype(engine: Engine, model: Checkpoint) -> str:
    if engine == "vllm":
        return "bfloat16"
    stored_dtypes = {model.tensors[name][1].dtype for name in model.channel_rows}
    return next(
        (DTYPE_NAMES[name] for name in sorted(stored_dtypes) if name in DTYPE_NAMES), "float32"
    )
