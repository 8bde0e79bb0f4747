"""Warns if a model was calibrated or trained on the text that it is evaluated on."""

import logging
from collections.abc import Mapping

from ..artifacts.origin import read_seen_texts
from ..artifacts.steps import DataSource
from ..errors import StatetrimError
from ..runtime.corpus import Corpus
from ..storage.checkpoint import Checkpoint
from .samples import SampleSource

_MAX_TOKENS_READ = 2**23  # of a longer text only the name is compared
_MAX_TEXTS = 16  # per model: each text in its records is read, and the records are not trusted

logger = logging.getLogger("statetrim")


def warn_of_seen_text(models: Mapping[str, Checkpoint], source: SampleSource) -> None:
    """Log which models have seen some of the evaluated text, and how many tokens to skip."""
    if source.text is None:
        return
    first = source.text.start + source.skip
    evaluated = range(first, first + source.text_tokens)
    names, most_seen = [], 0
    for name, model in models.items():
        tokens_seen = _seen_until(model, source.text.whole, evaluated)
        if tokens_seen:
            names.append(name)
            most_seen = max(most_seen, tokens_seen)
    if names:
        logger.warning(
            "warning: %s was calibrated or trained on the start of %s; to measure on new text, use "
            "--skip %d",
            " and ".join(names),
            source.text.text,
            most_seen,
        )


def _seen_until(model: Checkpoint, corpus: Corpus, evaluated: range) -> int:
    """Where the part of a text ends that the model has seen, in tokens; 0 if it has seen none of
    the `evaluated` tokens."""
    records = [*dict.fromkeys(read_seen_texts(model))][:_MAX_TEXTS]
    overlapping = [r for r in records if r.end > evaluated.start and r.source.skip < evaluated.stop]
    if not overlapping:
        return 0  # without reading any text
    end, overlaps = 0, False
    for record in records:
        if _holds_recorded_tokens(record.source, corpus):
            end = max(end, record.end)
            overlaps = overlaps or record in overlapping
    return end if overlaps else 0


def _holds_recorded_tokens(record: DataSource, corpus: Corpus) -> bool:
    """Whether a text source has, where `record` says, the tokens whose digest the record holds.

    The file may have been moved, and another may have its name. False if the source is too short or
    cannot be read. If the recorded part ends beyond _MAX_TOKENS_READ tokens, only the names are
    compared.
    """
    if record.skip + record.tokens > _MAX_TOKENS_READ:
        return record.text == str(corpus.text)
    try:
        text_sequences = corpus.read(tokens=record.tokens, length=record.length, skip=record.skip)
    except StatetrimError:  # the text is shorter than what the record describes
        return False
    return bool(text_sequences.lineage["digest"] == record.digest)
