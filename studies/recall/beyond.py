"""Recall tasks other than MQAR: copying random tokens and text, finding one value among many.

    python studies/recall/beyond.py ORIGINAL CUT ... --text valid.jsonl --results FILE

Answers are the tokens of highest logit. The first checkpoint is the original that the others are
paired with. One JSON line per checkpoint; those that the results hold are not measured again.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import statetrim as st
from judge import Row, Rows, study_parser
from statetrim.maths.paired import Pairs, difference_interval
from statetrim.runtime.corpus import Corpus
from statetrim.runtime.live import LiveModel
from statetrim.runtime.loading import load_live, load_tokenizer
from statetrim.tasks.generated import plain_tokens

Samples = dict[str, Tensor]
BATCH = 16


@torch.inference_mode()
def accuracy(live: LiveModel, ids: Tensor, positions: Tensor) -> Tensor:
    """The share of tokens after `positions` [n] that are predicted, float64 [rows]."""
    shares = []
    for batch in torch.split(ids, BATCH):
        best = live.logits(batch)[:, positions].argmax(-1)
        shares.append((best == batch[:, positions + 1]).double().mean(-1))
    return torch.cat(shares)


def samples(live: LiveModel, plain: Tensor, text: Tensor, rows: int) -> Samples:
    """Shares of right answers [rows] by task; `text`, int [rows, 128], is read twice."""
    generator = torch.Generator().manual_seed(77)
    by_task: Samples = {}
    for length in (16, 64):
        once = plain[torch.randint(len(plain), (rows, length), generator=generator)]
        positions = torch.arange(length, 2 * length - 1)
        by_task[f"copy {length} random tokens"] = accuracy(
            live, torch.cat([once, once], 1), positions
        )
    twice, half = torch.cat([text, text], 1).long(), text.shape[1]
    by_task["text, first reading"] = accuracy(live, twice, torch.arange(half - 1))
    by_task["text, second reading"] = accuracy(live, twice, torch.arange(half, 2 * half - 1))
    for pairs in (8, 32):  # as lines "key : value", one of them asked for at the end
        drawn = torch.rand(rows, len(plain), generator=generator).topk(2 * pairs + 2, -1).indices
        drawn = plain[drawn]
        colon, line = drawn[:, :1], drawn[:, 1:2]
        keys, values = drawn[:, 2::2], drawn[:, 3::2]
        lines = [
            torch.cat([keys[:, n : n + 1], colon, values[:, n : n + 1], line], 1)
            for n in range(pairs)
        ]
        queried = torch.randint(pairs, (rows, 1), generator=generator)
        question = torch.cat([keys.gather(1, queried), colon, values.gather(1, queried)], 1)
        ids = torch.cat([*lines, question], 1)
        by_task[f"one value of {pairs}"] = accuracy(live, ids, torch.tensor([4 * pairs + 1]))
    return by_task


def main() -> None:
    parser = study_parser(__doc__, "text", "results", rows=128)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--names", nargs="+", required=True, help="of the models, in the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = Rows(options.results)
    before: Samples | None = None
    for name, path in zip(options.names, options.models, strict=True):
        row: Row = {"model": options.names[0], "name": name, "rows": options.rows}
        is_known = results.has(row)
        if before is not None and is_known:
            continue
        model = st.open(path)
        tokenizer = load_tokenizer(model)
        text = Corpus(options.text, model).read(tokens=options.rows * 128, length=128).ids
        measured = samples(load_live(model), plain_tokens(tokenizer), text, options.rows)
        before = before or measured
        for task, after in measured.items():
            change = difference_interval([Pairs(before[task], after)])
            bounds = (float(after.mean()), change.low, change.high)
            row[task] = [round(x, 4) for x in bounds]
        if not is_known:
            results.add(row)


if __name__ == "__main__":
    main()
