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

_CHUNK = 128  # places whose logits are held at a time


@dataclass(frozen=True)
class Chosen:
    """What an engine chose after the first `begin` tokens of each sequence, and after each more."""

    kind: Kind
    sequences: Sequence[Sequence[int]]
    begin: int
    choices: Sequence[Sequence[int]]
    log_probabilities: Sequence[Sequence[float | None]] | None = None


@dataclass(frozen=True, eq=False)
class _Read:
    """One sequence as a model reads it; several tokens were proposed for each of its places."""

    best: Tensor  # int64 [places]
    gaps: Tensor  # float32 [proposals, places]: logits below the best, 0 for the best
    log_probabilities: Tensor  # float32 [proposals, places]


def judge(
    model: Checkpoint, name: str, dtype: torch.dtype, engine: Sequence[Chosen]
) -> list[Agreement]:
    """Agreement of an engine's choices with `model` in transformers, in both dtypes."""
    proposed = [[[list(c)] for c in chosen.choices] for chosen in engine]
    near = _read(model, dtype, engine, proposed)
    for proposals, reads in zip(proposed, near, strict=True):
        for one, read in zip(proposals, reads, strict=True):
            one.append(read.best.tolist())
    wide = near if dtype == torch.float32 else _read(model, torch.float32, engine, proposed)
    return [
        _agreement(name, chosen, *reads) for chosen, *reads in zip(engine, near, wide, strict=True)
    ]


def _agreement(name: str, chosen: Chosen, near: list[_Read], wide: list[_Read]) -> Agreement:
    def zeros(reads: list[_Read], proposal: int) -> list[int]:
        return [int((read.gaps[proposal] == 0).sum()) for read in reads]

    places = [len(choices) for choices in chosen.choices]
    exact = near is wide
    return Agreement(
        model=name,
        kind=chosen.kind,
        places=places,
        agreed=zeros(near, 0),
        agreed_float32=zeros(wide, 0),
        own=places if exact else zeros(wide, 1),
        largest_gap=max(float(read.gaps[0].max()) for read in near),
        largest_difference=_largest_difference(chosen, near),
        different_tokens=len({token for choices in chosen.choices for token in choices}),
    )


def _largest_difference(chosen: Chosen, near: list[_Read]) -> float | None:
    told = [
        abs(theirs - float(ours))
        for said, read in zip(chosen.log_probabilities or [], near, strict=False)
        for theirs, ours in zip(said, read.log_probabilities[0], strict=True)
        if theirs is not None
    ]
    return max(told, default=None)


def _read(
    model: Checkpoint,
    dtype: torch.dtype,
    engine: Sequence[Chosen],
    proposed: Sequence[Sequence[Sequence[Sequence[int]]]],
) -> list[list[_Read]]:
    """The model, loaded once, reads every sequence of every kind."""
    reader = LogitReader(load_live(model, Placement(dtype=dtype)))
    found = [
        [
            _read_one(reader, ids, chosen.begin, proposals)
            for ids, proposals in zip(chosen.sequences, several, strict=True)
        ]
        for chosen, several in zip(engine, proposed, strict=True)
    ]
    del reader
    gc.collect()  # before the next model comes
    return found


@torch.inference_mode()
def _read_one(
    reader: LogitReader, ids: Sequence[int], begin: int, proposals: Sequence[Sequence[int]]
) -> _Read:
    logits_at = reader.forward(torch.tensor([ids]))
    wanted = torch.tensor(proposals)  # [proposals, places]
    parts = []
    for start in range(0, wanted.shape[1], _CHUNK):
        some = wanted[:, start : start + _CHUNK]
        logits = logits_at(torch.arange(some.shape[1]) + begin - 1 + start)[0].cpu()
        best = logits.max(-1)
        values = logits.gather(1, some.mT).mT  # [proposals, places]
        likely = values - logits.logsumexp(-1)
        parts.append((best.indices, best.values - values, likely))
    indices, gaps, likely = (torch.cat(part, dim=-1) for part in zip(*parts, strict=True))
    return _Read(indices, gaps, likely)
