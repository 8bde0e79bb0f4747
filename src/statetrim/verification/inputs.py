"""The texts, sequences and prompts that every model of a verification gets."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from ..runtime.corpus import Corpus
from ..runtime.loading import load_tokenizer
from ..storage.checkpoint import Checkpoint
from ..storage.text import documents

MAX_CHARACTERS = 2000  # of a document, to compare tokenizers on

TokenIds = Sequence[Sequence[int]]


class VerificationInputs:
    """`texts` to encode, `sequences` of token ids to read, and `prompts`, their first halves.

    `texts` are the beginnings of the first `count` documents; `skip` tokens are left out of the
    sequences only. `original_ids` are the texts as the original's tokenizer encodes them. Raises
    StatetrimError if `text` has too few tokens.
    """

    def __init__(
        self, original: Checkpoint, text: str | Path, count: int, length: int, skip: int
    ) -> None:
        packed = Corpus(text, original).read(tokens=count * length, length=length, skip=skip)
        self.texts = [document[:MAX_CHARACTERS] for document in islice(documents(text), count)]
        self.sequences: list[list[int]] = packed.ids.tolist()
        self.prompts = [row[: length // 2] for row in self.sequences]
        self.lineage = packed.lineage
        self.original_ids = self.encode_with(original)

    def encode_with(self, model: Checkpoint) -> TokenIds:
        """Token ids of each of `texts` by the model's own tokenizer, without special tokens."""
        tokenizer = load_tokenizer(model)
        return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in self.texts]
