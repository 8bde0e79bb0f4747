"""What every model of a verification is asked: the same texts, sequences and prompts."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from ..runtime.loading import load_tokenizer
from ..storage.checkpoint import Checkpoint
from ..storage.text import documents, read_sequences

MAX_CHARACTERS = 2000  # of a document whose encodings are compared

TokenIds = Sequence[Sequence[int]]


class VerificationInputs:
    """`texts` to encode, `sequences` of ids to read, and their first halves to continue."""

    def __init__(
        self, original: Checkpoint, text: str | Path, count: int, length: int, skip: int
    ) -> None:
        packed = read_sequences(
            text, load_tokenizer(original), tokens=count * length, length=length, skip=skip
        )
        self.texts = [document[:MAX_CHARACTERS] for document in islice(documents(text), count)]
        self.sequences: list[list[int]] = packed.ids.tolist()
        self.prompts = [row[: length // 2] for row in self.sequences]
        self.lineage = packed.lineage
        self.original_ids = self.encode_with(original)

    def encode_with(self, model: Checkpoint) -> TokenIds:
        """The texts as a model's own tokenizer encodes them."""
        tokenizer = load_tokenizer(model)
        return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in self.texts]
