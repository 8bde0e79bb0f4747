"""lm-evaluation-harness: the one module that knows it. Tasks in, per-sample scores out."""

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import torch

from ..artifacts.scores import Score, Unit
from ..errors import StatetrimError, is_out_of_memory
from ..storage.text import import_datasets
from ..tasks import Task

ProgressCallback = Callable[[int, int], None]
"""Called with the requests answered so far, and all of them."""


def stock_tasks_directory() -> Path:
    """Where the installed lm-eval keeps its definitions; a sentence where it is not installed."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise StatetrimError(
            "these tasks need lm-eval, which `--tasks text,mqar --text FILE` does not; install it "
            'with: pip install "statetrim[evaluate]"'
        )
    return Path(spec.submodule_search_locations[0]) / "tasks"


def lm_eval_version() -> str:
    from importlib.metadata import version as installed

    stock_tasks_directory()
    return installed("lm_eval")


def wrap_hf_model(live: Any, tokenizer: Any, batch_size: int) -> Any:
    """lm-eval's transformers model around one that is loaded already.

    Likelihoods are padded on the right, behind all that counts. Generation is padded on the left,
    with a mask that not every recurrent model heeds (transformers' Mamba-2 does not: its
    convolution's bias enters the state). A probe tells, and then only prompts of one length share
    a batch.
    """
    silence_libraries()
    from lm_eval.models.huggingface import HFLM

    padding_is_safe = batch_size == 1 or is_left_padding_safe(live)
    eos_token_id = getattr(live.generation_config, "eos_token_id", None)
    eos_token_ids = {
        *(eos_token_id if isinstance(eos_token_id, list) else [eos_token_id]),
        tokenizer.eos_token_id,
    } - {None}
    stop_token_ids = sorted(eos_token_ids) or None

    class QuietHFLM(HFLM):  # type: ignore[misc]
        """Without tqdm's bars; the run has one of its own."""

        def _loglikelihood_tokens(
            self, requests: Any, disable_tqdm: bool = False, **kw: Any
        ) -> Any:
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, **kw)

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            return super().loglikelihood(requests, disable_tqdm=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            likelihoods = []
            for start in range(0, len(requests), batch_size):  # so that progress can be seen
                chunk = requests[start : start + batch_size]
                likelihoods += super().loglikelihood_rolling(chunk, disable_tqdm=True)
            return likelihoods

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
            if padding_is_safe:
                return super().generate_until(requests, disable_tqdm=True)
            answers: dict[int, str] = {}
            lengths = [len(self.tok_encode(request.args[0])) for request in requests]
            for length in sorted(set(lengths)):
                positions = [
                    position
                    for position, request_length in enumerate(lengths)
                    if request_length == length
                ]
                same_length = [requests[position] for position in positions]
                texts = super().generate_until(same_length, disable_tqdm=True)
                answers.update(zip(positions, texts, strict=True))
            return [answers[position] for position in range(len(requests))]

        def _model_generate(self, context: Any, max_length: int, stop: Any, **kw: Any) -> Any:
            # Without an id in the config a row would write on behind its end of text for as long
            # as its neighbours do, and the answer would depend on them.
            kw.setdefault("eos_token_id", stop_token_ids)
            return super()._model_generate(context, max_length, stop, **kw)

    return QuietHFLM(pretrained=live, tokenizer=tokenizer, batch_size=batch_size)


def is_left_padding_safe(live: Any) -> bool:
    """Whether a prompt padded on the left gives the logits it gives alone, for two tokens."""
    vocabulary = int(live.get_input_embeddings().weight.shape[0])
    ids = (torch.arange(1, 12, device=live.device) * 7919 % vocabulary).unsqueeze(0)
    padded = torch.cat([torch.zeros_like(ids[:, :5]), ids], 1)
    mask = torch.ones_like(padded)
    mask[:, :5] = 0
    unpadded_logits, padded_logits = (
        live.generate(
            input_ids=prompt,
            attention_mask=attention_mask,
            max_new_tokens=2,
            min_new_tokens=2,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            pad_token_id=0,
        ).logits
        for prompt, attention_mask in ((ids, torch.ones_like(ids)), (padded, mask))
    )
    tolerance = 1e-3 if unpadded_logits[0].dtype == torch.float32 else 0.05
    return all(
        float((expected.float() - actual.float()).abs().max())
        <= tolerance * float(expected.float().std())
        for expected, actual in zip(unpadded_logits, padded_logits, strict=True)
    )


def load_vllm_model(path: Path, batch_size: int | str, options: Mapping[str, Any]) -> Any:
    """lm-eval's own vLLM model, in an environment that has vLLM; `options` are vLLM's."""
    if importlib.util.find_spec("vllm") is None:
        raise StatetrimError(
            "--engine vllm needs vLLM in this environment, and it is not installed; "
            "install it, or leave out --engine to run in transformers"
        )
    stock_tasks_directory()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # nor is a host told
    from lm_eval.models.vllm_causallms import VLLM

    fixed_options = {"pretrained": str(path), "batch_size": batch_size, "trust_remote_code": False}
    conflict = next((name for name in options if name in fixed_options), None)
    if conflict:
        raise StatetrimError(f"{conflict!r} is not an option for vLLM here: evaluate sets it")
    return VLLM(**fixed_options, **options)


def run_task(
    lm: Any, model: str, task: Task, directory: Path, limit: int | None, report: ProgressCallback
) -> list[Score]:
    """One task through `lm_eval.evaluate`, every sample logged.

    `directory` holds the task's definition, or is lm-eval's own folder of a stock task.
    """
    silence_libraries()
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(directory), include_defaults=False)
    try:
        task_dict = manager.load([task.name])
        lm_eval_task = task_dict["tasks"][task.name]
    except Exception as error:
        reason = " ".join(str(error).split())[:200]
        raise StatetrimError(f"lm-eval cannot open the task {task.name}: {reason}") from None
    if lm_eval_task.get_config("num_fewshot") is None:
        lm_eval_task.set_config(key="num_fewshot", value=0)
    # simple_evaluate does this and asks git where it runs; nothing here is drawn at random.
    try:
        lm.cache_hook = _RequestCounter(lm_eval_task, limit, report)
        results: Any = lm_eval.evaluate(
            lm=lm,
            task_dict=task_dict,
            limit=limit,
            log_samples=True,
            bootstrap_iters=0,  # the intervals are ours, paired
        )
    except (OSError, StatetrimError):
        raise
    except Exception as error:  # a row may hold anything, and so may a tokenizer
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:200]
        raise StatetrimError(
            f"lm-eval stopped in {task.name}: {reason or type(error).__name__}; a row may lack a "
            f"field, or the tokenizer of {model} have tokens without an embedding"
        ) from error
    samples = sorted(results["samples"][task.name], key=lambda sample: int(sample["doc_id"]))
    higher_is_better = results["higher_is_better"][task.name]
    metrics = [name for name in samples[0]["metrics"] if name != "bits_per_byte"]
    return [
        _to_score(model, task, name, samples, higher_is_better.get(name, True)) for name in metrics
    ]


class _RequestCounter:
    """Stands where lm-eval would cache answers, and counts them."""

    def __init__(self, task: Any, limit: int | None, report: ProgressCallback) -> None:
        sample_count = len(task.eval_docs)
        sample_count = min(sample_count, limit) if limit else sample_count
        choices = 1
        if task.OUTPUT_TYPE == "multiple_choice":
            first = task.eval_docs[0]
            choices = len(task.doc_to_choice(first))
        self.done, self.total, self.report = 0, sample_count * choices, report
        report(0, self.total)

    def add_partial(self, *_: Any) -> None:
        self.done += 1
        self.report(min(self.done, self.total), max(self.total, self.done))


def _to_score(
    model: str, task: Task, metric: str, samples: list[dict[str, Any]], higher_is_better: bool
) -> Score:
    unit: Unit = "perplexity" if "perplexity" in metric else "share"
    raw_values = [sample[metric] for sample in samples]
    weighted = isinstance(raw_values[0], tuple | list)
    values = [float(value[0] if weighted else value) for value in raw_values]
    if not all(isfinite(value) for value in values):
        raise StatetrimError(f"{model} gives likelihoods that are not numbers on {task.name}")
    weights = [float(value[1]) for value in raw_values] if weighted else None
    return Score(
        model, task.name, metric, unit, higher_is_better and unit == "share", values, weights
    )


def silence_libraries() -> None:
    """Their bars and warnings would stand between the user and ours; nor is a host told."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    stock_tasks_directory()
    from transformers.utils import logging as transformers_logging

    import_datasets().disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
