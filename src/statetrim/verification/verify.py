"""Cuts and their original in a real engine, compared with transformers -> Verification.

A cut's config, weights and tokenizer are compared with the original's first; that needs no engine.
Then the engine reads texts and continues prompts with every model, and transformers reads the same
tokens: the engine must agree with transformers on a cut as well as on the original.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.state_sizes import stored_dtype
from ..artifacts.verification import MAX_MARGIN, Agreement, Kind, Verification
from ..options import as_record, takes_options
from ..progress import OnProgress, Progress, progress_reporter
from ..runtime.corpus import Corpus
from ..runtime.loading import load_live, load_tokenizer
from ..runtime.logits import LogitReader
from ..runtime.placement import Placement
from ..storage.checkpoint import Checkpoint, require_prunable
from ..storage.models import ModelLike, as_checkpoint, as_checkpoints, short_names
from ..storage.output import run_and_save
from ..storage.redirections import check_no_redirections
from ..storage.text import documents
from ..version import __version__
from .engine import DriverAnswer, DriverRequest, EngineError, TokenIds, run_engine
from .options import DRIVEN, VerifyOptions

MAX_CHARACTERS = 2000  # of a document, to compare tokenizers on
MAX_AGREEMENT_LOSS = 1.0  # points that a cut may significantly lose against its original
MAX_ENGINE_GAP = 5.0  # points of disagreement beyond what the engine's dtype explains
FEW_POSITIONS = 100  # below, some near ties are already more than MAX_ENGINE_GAP
_CHUNK_POSITIONS = 128  # whose logits are in memory at a time


@dataclass(frozen=True)
class EngineChoices:
    """The engine's most likely tokens after each sequence's first `prompt_length` tokens, then
    after one more each; with log-probabilities where it reports them."""

    kind: Kind
    sequences: Sequence[Sequence[int]]
    prompt_length: int
    choices: Sequence[Sequence[int]]
    log_probabilities: Sequence[Sequence[float | None]] | None = None


@dataclass(frozen=True, eq=False)
class _Reading:
    """Logits of transformers along one sequence, for candidate tokens at each position.

    The first candidate is the engine's choice, the second that of transformers in another dtype.
    """

    best: Tensor  # int64 [positions]
    gaps: Tensor  # float32 [candidates, positions]: logits below the best, 0 for the best
    log_probabilities: Tensor  # float32 [candidates, positions]


@takes_options(VerifyOptions)
def verify(models: ModelLike | Sequence[ModelLike], options: VerifyOptions) -> Verification:
    """Run the cuts `models` and their original `baseline` in `engine`.

    It is vllm, mlx, llamacpp, or transformers, which loads quantised weights as they are stored.
    `engine_python` is the executable of the engine's environment, None of this one. Every model
    reads `count` sequences of `length` tokens of `text`, and continues the first half of each by
    `generate` tokens. `dtype` None is the stored one, in vLLM bfloat16. `engine_options` go to the
    engine. The time limit for each model is `seconds`. Problems, such as a refusal by the engine,
    are listed in the result's `faults`; a cut whose config or weights do not fit its plan is not
    run. With `out` the result is also written there. Raises StatetrimError for invalid arguments,
    such as a text with too few tokens.
    """
    checkpoints = [require_prunable(as_checkpoint(options.baseline)), *as_checkpoints(models)]
    for checkpoint in checkpoints:  # an engine reads the directory itself
        check_no_redirections(checkpoint.path, checkpoint.config)
    record = {
        "format": "statetrim verify",
        "models": [checkpoint.digest for checkpoint in checkpoints],
        "options": as_record(options),
    }

    def make(directory: Path | None) -> Verification:
        with progress_reporter(options.progress, "verifying") as report:
            return _verify(checkpoints, options, report)

    return run_and_save(options.out, record, make, Verification.load)


def _verify(
    checkpoints: Sequence[Checkpoint], options: VerifyOptions, progress: OnProgress
) -> Verification:
    """Compare the first checkpoint, the original, with the others, its cuts."""
    original, engine = checkpoints[0], DRIVEN[options.engine]
    dtype = options.dtype or engine.dtype or stored_dtype(original)
    request, text_lineage = _request(original, options, dtype)
    verification = Verification(
        engine=options.engine,
        version="",
        dtype=dtype,
        models=short_names(checkpoints),
        lineage={
            "statetrim": __version__,
            "models": [checkpoint.digest for checkpoint in checkpoints],
            "options": dict(request.options),
            "text": text_lineage,
        },
    )
    original_ids = _encode(original, request.texts)
    for number, (name, model) in enumerate(zip(verification.models, checkpoints, strict=True)):
        label = f"{engine.name} runs {name}, and transformers reads the same"
        progress(Progress(number, len(checkpoints), "settings", label))
        token_ids, notes = _encode(model, request.texts), list[str]()
        faults = _encoding_faults(original_ids, token_ids, "its tokenizer", "the original's")
        try:
            request = replace(request, model=str(model.path.resolve()))
            python = Path(options.engine_python or sys.executable)
            answer = run_engine(engine, python, request, options.seconds)
        except EngineError as failure:
            verification.refusals[name] = str(failure)
        else:
            verification = replace(verification, version=answer.engine)
            if answer.encoded is None:
                notes.append(f"{engine.name} does not know its tokenizer")
            else:
                tokenizer = f"{engine.name}'s tokenizer of it"
                faults += _encoding_faults(token_ids, answer.encoded, tokenizer, "transformers'")
            choices = _engine_choices(request, answer)
            agreements = compare_choices(model, name, getattr(torch, dtype), choices)
            verification.agreements.extend(agreements)
        faults += _engine_faults(verification, name, engine.name)
        notes += _sample_notes(verification, name)
        verification.faults.update({name: faults} if faults else {})
        verification.notes.update({name: notes} if notes else {})
    return verification


def _request(
    original: Checkpoint, options: VerifyOptions, dtype: str
) -> tuple[DriverRequest, dict[str, Any]]:
    """What the engine gets, still without a model, and the lineage of the text: beginnings of its
    first `count` documents to encode, and sequences of its tokens after `skip`, with prompts."""
    count, length = options.count, options.length
    packed = Corpus(options.text, original).read(
        tokens=count * length, length=length, skip=options.skip
    )
    sequences: list[list[int]] = packed.ids.tolist()
    request = DriverRequest(
        model="",
        dtype=dtype,
        texts=[text[:MAX_CHARACTERS] for text in islice(documents(options.text), count)],
        sequences=sequences,
        prompts=[row[: length // 2] for row in sequences],
        generate=options.generate,
        options=dict(options.engine_options or {}),
    )
    return request, packed.lineage


def _encode(model: Checkpoint, texts: Sequence[str]) -> TokenIds:
    """Token ids of each text by the model's own tokenizer, without special tokens."""
    tokenizer = load_tokenizer(model)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def _encoding_faults(
    expected: TokenIds, actual: TokenIds, tokenizer: str, reference: str
) -> list[str]:
    """A sentence if the tokenizers encode any text differently."""
    differing = 0
    for expected_ids, actual_ids in zip(expected, actual, strict=True):
        differing += list(expected_ids) != list(actual_ids)
    if not differing:
        return []
    texts = f"{differing} of {len(expected)} texts"
    return [f"{tokenizer} gives other tokens than {reference} for {texts}"]


def _engine_choices(request: DriverRequest, answer: DriverAnswer) -> list[EngineChoices]:
    """Choices in the given texts, and in the continuations after their prompts."""
    continued = []
    for prompt, tokens in zip(request.prompts, answer.continuations, strict=True):
        continued.append([*prompt, *tokens])
    return [
        EngineChoices("texts", request.sequences, 1, answer.choices, answer.log_probabilities),
        EngineChoices("continuations", continued, len(request.prompts[0]), answer.continuations),
    ]


def _engine_faults(verification: Verification, name: str, engine: str) -> Iterator[str]:
    """A sentence for a refusal, and for each kind of tokens on which the engine disagrees.

    That is: by MAX_ENGINE_GAP points more than its dtype explains, or significantly and by
    MAX_AGREEMENT_LOSS points more than on the original.
    """
    original = verification.models[0]
    if name in verification.refusals:
        refuses_original = name != original and original in verification.refusals
        also_original = ", nor the original" if refuses_original else ""
        yield f"{engine} does not run it{also_original}: {verification.refusals[name]}"
    for kind in verification.kinds:
        agreement = verification.find(name, kind)
        if agreement is None:
            continue
        share, own_share = agreement.share("agreed_float32"), agreement.share("own")
        places = sum(agreement.places)
        if 100 * (own_share - share) > MAX_ENGINE_GAP:
            yield (
                f"{engine} chooses as transformers in float32 at only {100 * share:.1f} % of the "
                f"positions in {kind}, where {verification.dtype} itself does at "
                f"{100 * own_share:.1f} %"
            ) + (f"; {places} positions are few: compare more" if places < FEW_POSITIONS else "")
        change = None if name == original else verification.agreement_change(name, kind)
        if change is not None and change.high < 0 and change.estimate < -MAX_AGREEMENT_LOSS:
            yield (
                f"{engine} agrees with transformers less than on the original in {kind}: "
                f"{change.estimate:+.2f} points ({change.low:+.2f} to {change.high:+.2f})"
            )


def _sample_notes(verification: Verification, name: str) -> Iterator[str]:
    """A sentence for each kind of tokens with too few sequences for an interval of the loss."""
    for kind in verification.kinds:
        change = verification.agreement_change(name, kind)
        if change is not None and change.margin > MAX_MARGIN:
            yield f"its loss in {kind} has no interval: compare more sequences, with --count"


def compare_choices(
    model: Checkpoint, name: str, dtype: torch.dtype, engine_choices: Sequence[EngineChoices]
) -> list[Agreement]:
    """Agreement of an engine's choices with `model` in transformers, in `dtype` and then float32.
    How often `dtype` agrees with float32 shows what the dtype alone explains."""
    in_dtype = _read_all(model, dtype, engine_choices, None)
    in_float32 = in_dtype
    if dtype != torch.float32:
        in_float32 = _read_all(model, torch.float32, engine_choices, in_dtype)
    agreements = []
    for chosen, readings, exact in zip(engine_choices, in_dtype, in_float32, strict=True):
        agreements.append(_agreement(name, chosen, readings, exact))
    return agreements


def _agreement(
    name: str, engine_choices: EngineChoices, in_dtype: list[_Reading], in_float32: list[_Reading]
) -> Agreement:
    """Counts by sequence; if both readings are one list, the engine ran in float32."""
    positions = list(map(len, engine_choices.choices))
    ran_in_float32 = in_dtype is in_float32  # then transformers agrees with itself everywhere
    return Agreement(
        model=name,
        kind=engine_choices.kind,
        places=positions,
        agreed=_count_best(in_dtype, 0),
        agreed_float32=_count_best(in_float32, 0),
        own=positions if ran_in_float32 else _count_best(in_float32, 1),
        largest_gap=max(float(reading.gaps[0].max()) for reading in in_dtype),
        largest_difference=_largest_difference(engine_choices, in_dtype),
        different_tokens=len(set(chain.from_iterable(engine_choices.choices))),
    )


def _count_best(readings: list[_Reading], candidate: int) -> list[int]:
    """By sequence, the number of positions at which no token has a larger logit than the
    candidate: 0 is the engine's choice, 1 that of the other dtype."""
    return [int((reading.gaps[candidate] == 0).sum()) for reading in readings]


def _largest_difference(engine_choices: EngineChoices, in_dtype: list[_Reading]) -> float | None:
    """Largest absolute difference between the engine's log-probabilities of its choices and those
    of transformers, in nats; None if the engine reports none."""
    differences = []
    for engine_row, reading in zip(engine_choices.log_probabilities or [], in_dtype, strict=False):
        own_row = reading.log_probabilities[0].tolist()
        for engine_value, own_value in zip(engine_row, own_row, strict=True):
            if engine_value is not None:
                differences.append(abs(engine_value - own_value))
    return max(differences, default=None)


def _read_all(
    model: Checkpoint,
    dtype: torch.dtype,
    engine_choices: Sequence[EngineChoices],
    other_dtype: Sequence[Sequence[_Reading]] | None,
) -> list[list[_Reading]]:
    """Load the model in `dtype`, read every sequence, and unload it. Candidates are the engine's
    choices and, if given, the best tokens of `other_dtype`."""
    reader = LogitReader(load_live(model, Placement(dtype=dtype)))
    all_readings = []
    for number, chosen in enumerate(engine_choices):
        readings = []
        for row, (ids, choices) in enumerate(zip(chosen.sequences, chosen.choices, strict=True)):
            candidates = [list(choices)]
            if other_dtype is not None:
                candidates.append(other_dtype[number][row].best.tolist())
            readings.append(_read_sequence(reader, ids, chosen.prompt_length, candidates))
        all_readings.append(readings)
    del reader
    gc.collect()  # frees the model before another is loaded
    return all_readings


@torch.inference_mode()
def _read_sequence(
    reader: LogitReader,
    ids: Sequence[int],
    prompt_length: int,
    candidate_rows: Sequence[Sequence[int]],
) -> _Reading:
    """The model's best token at each position from the last of the prompt on, and how far below it
    each row of `candidate_rows` [candidates, positions] is there.

    `ids`, prompt included, is the context only; a candidate is one token after each position.
    """
    logits_at = reader.forward(torch.tensor([ids]))
    candidate_ids = torch.tensor(candidate_rows)  # [candidates, positions]
    best_ids, gaps, log_probabilities = [], [], []
    for start in range(0, candidate_ids.shape[1], _CHUNK_POSITIONS):
        chunk_ids = candidate_ids[:, start : start + _CHUNK_POSITIONS]
        logits = logits_at(torch.arange(chunk_ids.shape[1]) + prompt_length - 1 + start)[0].cpu()
        best = logits.max(-1)
        values = logits.gather(1, chunk_ids.mT).mT  # [candidates, positions]
        best_ids.append(best.indices)
        gaps.append(best.values - values)
        log_probabilities.append(values - logits.logsumexp(-1))
    return _Reading(torch.cat(best_ids), torch.cat(gaps, -1), torch.cat(log_probabilities, -1))
