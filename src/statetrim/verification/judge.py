"""Transformers reads what an engine read, and says of each of its choices whether it agrees."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..artifacts.verification.agreement import Agreement, Kind
from ..runtime.loading import load_live
from ..runtime.logits import LogitReader
from ..runtime.placement import Placement
from ..storage.checkpoint import Checkpoint

_CHUNK_POSITIONS = 128  # places whose logits are held at a time


@dataclass(frozen=True)
class EngineChoices:
    """What an engine chose after the first `begin` tokens of each sequence, and after each more."""

    kind: Kind
    sequences: Sequence[Sequence[int]]
    prompt_length: int
    choices: Sequence[Sequence[int]]
    log_probabilities: Sequence[Sequence[float | None]] | None = None


@dataclass(frozen=True, eq=False)
class _Reading:
    """One sequence as a model reads it; several tokens were proposed for each of its places."""

    best: Tensor  # int64 [places]
    gaps: Tensor  # float32 [proposals, places]: logits below the best, 0 for the best
    log_probabilities: Tensor  # float32 [proposals, places]


def compare_choices(
    model: Checkpoint, name: str, dtype: torch.dtype, engine_choices: Sequence[EngineChoices]
) -> list[Agreement]:
    """Agreement of an engine's choices with `model` in transformers, in both dtypes."""
    candidates = [
        [[list(sequence_choices)] for sequence_choices in chosen.choices]
        for chosen in engine_choices
    ]
    in_dtype = _read_all(model, dtype, engine_choices, candidates)
    for proposals, reads in zip(candidates, in_dtype, strict=True):
        for sequence_candidates, read in zip(proposals, reads, strict=True):
            sequence_candidates.append(read.best.tolist())
    in_float32 = (
        in_dtype
        if dtype == torch.float32
        else _read_all(model, torch.float32, engine_choices, candidates)
    )
    return [
        _agreement(name, chosen, *reads)
        for chosen, *reads in zip(engine_choices, in_dtype, in_float32, strict=True)
    ]


def _agreement(
    name: str, engine_choices: EngineChoices, in_dtype: list[_Reading], in_float32: list[_Reading]
) -> Agreement:
    def count_best(reads: list[_Reading], candidate: int) -> list[int]:
        return [int((read.gaps[candidate] == 0).sum()) for read in reads]

    positions = [len(choices) for choices in engine_choices.choices]
    is_float32 = in_dtype is in_float32
    return Agreement(
        model=name,
        kind=engine_choices.kind,
        places=positions,
        agreed=count_best(in_dtype, 0),
        agreed_float32=count_best(in_float32, 0),
        own=positions if is_float32 else count_best(in_float32, 1),
        largest_gap=max(float(read.gaps[0].max()) for read in in_dtype),
        largest_difference=_largest_difference(engine_choices, in_dtype),
        different_tokens=len({token for choices in engine_choices.choices for token in choices}),
    )


def _largest_difference(engine_choices: EngineChoices, in_dtype: list[_Reading]) -> float | None:
    differences = [
        abs(engine_value - float(own_value))
        for engine_row, read in zip(engine_choices.log_probabilities or [], in_dtype, strict=False)
        for engine_value, own_value in zip(engine_row, read.log_probabilities[0], strict=True)
        if engine_value is not None
    ]
    return max(differences, default=None)


def _read_all(
    model: Checkpoint,
    dtype: torch.dtype,
    engine_choices: Sequence[EngineChoices],
    candidates: Sequence[Sequence[Sequence[Sequence[int]]]],
) -> list[list[_Reading]]:
    """The model, loaded once, reads every sequence of every kind."""
    reader = LogitReader(load_live(model, Placement(dtype=dtype)))
    readings = [
        [
            _read_sequence(reader, ids, chosen.prompt_length, row_candidates)
            for ids, row_candidates in zip(chosen.sequences, sequence_candidates, strict=True)
        ]
        for chosen, sequence_candidates in zip(engine_choices, candidates, strict=True)
    ]
    del reader
    gc.collect()  # before the next model comes
    return readings


@torch.inference_mode()
def _read_sequence(
    reader: LogitReader, ids: Sequence[int], prompt_length: int, candidates: Sequence[Sequence[int]]
) -> _Reading:
    logits_at = reader.forward(torch.tensor([ids]))
    candidate_ids = torch.tensor(candidates)  # [proposals, places]
    chunks = []
    for start in range(0, candidate_ids.shape[1], _CHUNK_POSITIONS):
        chunk_ids = candidate_ids[:, start : start + _CHUNK_POSITIONS]
        logits = logits_at(torch.arange(chunk_ids.shape[1]) + prompt_length - 1 + start)[0].cpu()
        best = logits.max(-1)
        values = logits.gather(1, chunk_ids.mT).mT  # [proposals, places]
        log_probabilities = values - logits.logsumexp(-1)
        chunks.append((best.indices, best.values - values, log_probabilities))
    indices, gaps, log_probabilities = (
        torch.cat(pieces, dim=-1) for pieces in zip(*chunks, strict=True)
    )
    return _Reading(indices, gaps, log_probabilities)
