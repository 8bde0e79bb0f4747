"""Compare the tokens that an engine chose with those of transformers on the same sequences."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from ..artifacts.verification import Agreement, Kind
from ..runtime.loading import load_live
from ..runtime.logits import LogitReader
from ..runtime.placement import Placement
from ..storage.checkpoint import Checkpoint

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
