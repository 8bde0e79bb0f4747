"""Write the tokenizer of the demo's model: a token is an ASCII character, its id the code.

    python studies/demo_tokenizer.py FOLDER

Keys of recall sequences are then digits and punctuation, values are capital letters, and fillers
are small letters. Other characters are left out.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

END = "<|endoftext|>"  # Qwen's: transformers adds it if it is missing
UNUSED_MERGE = ("\x00", "\x01")  # llama.cpp wants a merge


def main() -> None:
    by_byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def name(character: str) -> str:
        """What byte-level tokenizers call a character; a space is Ġ."""
        return str(by_byte.pre_tokenize_str(character)[0][0])

    merge = (name(UNUSED_MERGE[0]), name(UNUSED_MERGE[1]))
    # The end of text comes last, so that the plain tokens and the vocabulary have equal quarters.
    names = [*(name(chr(code)) for code in range(128)), "".join(merge), END]
    vocabulary = {token: index for index, token in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[merge]))
    tokenizer.pre_tokenizer = by_byte
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END)
    fast.save_pretrained(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
