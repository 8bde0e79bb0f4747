"""llama.cpp's converter, then its quantiser, with the converter's arguments.

    LLAMA_FILE_TYPE=Q4_K_M python convert_and_quantise.py MODEL --outfile FILE ...

`make_llamacpp.sh` copies it next to the converter. As `converter` of `statetrim verify --engine
llamacpp` it shows how the quantised model agrees with the checkpoint.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from gguf import LlamaFileType


def quantise(plain: Path, out: Path, file_type: str) -> None:
    """Write a GGUF file in another type, as `llama-quantize` does."""
    from cyllama.llama import llama_cpp

    parameters = llama_cpp.LlamaModelQuantizeParams()
    parameters.ftype = int(LlamaFileType[f"MOSTLY_{file_type}"])
    parameters.nthread = 1
    llama_cpp.model_quantize(str(plain), str(out), parameters)


def main() -> None:
    runpy.run_path(str(Path(__file__).with_name("convert_hf_to_gguf.py")), run_name="__main__")
    out = Path(sys.argv[sys.argv.index("--outfile") + 1])
    plain = out.rename(out.with_name(f"plain-{out.name}"))
    quantise(plain, out, os.environ["LLAMA_FILE_TYPE"])


if __name__ == "__main__":
    main()
