"""Text sources: their documents in a fixed order, and sequences of token ids made from them."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # check_text_source must not import torch
    from torch import Tensor

from ..errors import StatetrimError, errors_of

SUFFIXES = (".txt", ".jsonl", ".parquet")


@dataclass(frozen=True, eq=False)
class Sequences:
    """Packed token ids [count, length], and the text source they come from."""

    ids: "Tensor"  # int32 [count, length]
    lineage: dict[str, Any]
    # int64 [n]: positions whose next token is an answer that can be inferred; None: all positions
    answer_positions: "Tensor | None" = None

    @property
    def tokens(self) -> int:
        return self.ids.numel()

    def batches(self, size: int) -> "list[Tensor]":
        """The sequences in order, as int64 tensors [at most `size`, length]."""
        return [self.ids[i : i + size].long() for i in range(0, len(self.ids), size)]


def check_text_source(text: str | Path) -> None:
    """Raise StatetrimError if `text` cannot be a file, directory or hub dataset of texts; nothing
    is read, and the hub is not contacted."""
    path = Path(text)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise StatetrimError(f"{text} is a pipe or a device, not a file; give a text file")
    if path.suffix in SUFFIXES and not path.exists():
        raise StatetrimError(
            f"there is no file {text}; give a text file, a folder of them, or a hub dataset"
        )
    is_text_file = path.is_file() and path.suffix in SUFFIXES
    may_be_dataset = not path.exists() and not path.suffix
    if not (is_text_file or path.is_dir() or may_be_dataset):
        raise StatetrimError(
            f"{text} is neither a file ending in {', '.join(SUFFIXES)}, a directory of them, nor "
            f"the name of a hub dataset"
        )


def documents(text: str | Path) -> Iterator[str]:
    """Yield the documents of a text source, always in the same order: a .txt file is one, in other
    files and hub datasets every row is one."""
    check_text_source(text)
    path = Path(text)
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
        if not files:
            raise StatetrimError(f"{path} holds no file ending in {', '.join(SUFFIXES)}")
        for file in files:
            yield from documents(file)
    elif path.suffix == ".txt":
        yield path.read_text(encoding="utf-8", errors="replace")
    elif path.suffix == ".jsonl":
        with path.open(encoding="utf-8", errors="replace") as rows:
            for number, row in enumerate(rows, start=1):
                try:
                    yield _row_text(json.loads(row))
                except (ValueError, RecursionError):  # also of a blank line
                    raise StatetrimError(
                        f"{path}, line {number}, is not a JSON object with a field 'text'"
                    ) from None
    elif path.suffix == ".parquet":
        yield from _dataset_documents("parquet", data_files=str(path))
    else:
        yield from _dataset_documents(str(text))


def import_datasets_without_counter() -> Any:
    """Import `datasets` and switch its download counter off: it contacts a host, even for files."""
    import datasets

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    return datasets


def _dataset_documents(name: str, **options: Any) -> Iterator[str]:
    """Stream the texts of the train split; StatetrimError if it cannot be read, also halfway."""
    # Within, such as by a parquet file that is damaged after its header.
    with errors_of(f"the dataset {name} cannot be read"):
        for row in import_datasets_without_counter().load_dataset(
            name, split="train", streaming=True, **options
        ):
            yield _row_text(row)


def _row_text(row: Any) -> str:
    """The field `text` of a row, with unpaired surrogates replaced; StatetrimError without one."""
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        raise StatetrimError("every row of the text source needs a field 'text'")
    # JSON can hold half a surrogate pair, which no tokenizer takes.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
