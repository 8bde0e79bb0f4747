"""The only module that imports lm-evaluation-harness: task -> scores per sample."""

import importlib.util
import logging
import os
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..artifacts.scores import Score
from ..errors import StatetrimError, errors_of, is_out_of_memory
from ..storage.text import import_datasets
from ..tasks import Task
from ..tasks.unit import PERPLEXITY, SHARE

ProgressCallback = Callable[[int, int], None]
"""Called with the number of requests answered so far, and of all requests."""


def stock_tasks_directory() -> Path:
    """The task definitions of the installed lm-eval. Raises StatetrimError without lm-eval."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise StatetrimError(
            "these tasks need lm-eval, which `--tasks text,mqar --text FILE` does not; install it "
            'with: pip install "statetrim[evaluate]"'
        )
    return Path(spec.submodule_search_locations[0]) / "tasks"


def wrap_hf_model(live: Any, tokenizer: Any, batch_size: int) -> Any:
    """lm-eval's HFLM around the loaded transformers model `live`.

    Prompts of generation are padded on the left, with an attention mask that not every recurrent
    model applies (transformers' Mamba-2 does not: the bias of its convolution enters the state). If
    a probe finds such a model, only prompts of the same length share a batch.
    """
    silence_libraries()
    from lm_eval.models.huggingface import HFLM

    padding_is_safe = batch_size == 1 or is_left_padding_safe(live)
    config_ids = getattr(live.generation_config, "eos_token_id", None)
    eos_token_ids = {*(config_ids if isinstance(config_ids, list) else [config_ids])}
    stop_token_ids = sorted((eos_token_ids | {tokenizer.eos_token_id}) - {None}) or None

    class QuietHFLM(HFLM):  # type: ignore[misc]
        """Without tqdm's progress bars: the caller shows one."""

        def _loglikelihood_tokens(
            self, requests: Any, disable_tqdm: bool = False, **kw: Any
        ) -> Any:
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, **kw)

        def loglikelihood(self, requests: Any, disable_tqdm: bool = False) -> Any:
            return super().loglikelihood(requests, disable_tqdm=True)

        def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> Any:
            likelihoods = []
            for start in range(0, len(requests), batch_size):  # progress after every chunk
                chunk = requests[start : start + batch_size]
                likelihoods += super().loglikelihood_rolling(chunk, disable_tqdm=True)
            return likelihoods

        def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
            if padding_is_safe:
                return super().generate_until(requests, disable_tqdm=True)
            lengths = [len(self.tok_encode(request.args[0])) for request in requests]
            answers = [""] * len(requests)
            for length in sorted(set(lengths)):
                indices = [index for index, other in enumerate(lengths) if other == length]
                same_length = [requests[index] for index in indices]
                texts = super().generate_until(same_length, disable_tqdm=True)
                for index, text in zip(indices, texts, strict=True):
                    answers[index] = text
            return answers

        def _model_generate(self, context: Any, max_length: int, stop: Any, **kw: Any) -> Any:
            # Without an end-of-text id a row would continue after its end of text for as long as
            # the other rows of its batch do, and its answer would depend on them.
            kw.setdefault("eos_token_id", stop_token_ids)
            return super()._model_generate(context, max_length, stop, **kw)

    return QuietHFLM(pretrained=live, tokenizer=tokenizer, batch_size=batch_size)


def is_left_padding_safe(live: Any) -> bool:
    """Whether a probe padded on the left gives the logits of the unpadded probe, for two generated
    tokens: one of prefill, one of decode."""
    vocabulary = int(live.get_input_embeddings().weight.shape[0])
    ids = (torch.arange(1, 12, device=live.device) * 7919 % vocabulary).unsqueeze(0)
    padded = torch.cat([torch.zeros_like(ids[:, :5]), ids], 1)
    mask = torch.ones_like(padded)
    mask[:, :5] = 0
    unpadded_logits = _next_two_logits(live, ids, torch.ones_like(ids))
    tolerance = 1e-3 if unpadded_logits[0].dtype == torch.float32 else 0.05
    for expected, actual in zip(unpadded_logits, _next_two_logits(live, padded, mask), strict=True):
        difference = float((expected.float() - actual.float()).abs().max())
        if not difference <= tolerance * float(expected.float().std()):
            return False
    return True


def _next_two_logits(live: Any, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
    """Logits of two greedily generated tokens, each [batch, vocabulary]."""
    logits: tuple[Tensor, ...] = live.generate(
        input_ids=input_ids,
        attention_mask=attention_mask,
        max_new_tokens=2,
        min_new_tokens=2,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
        pad_token_id=0,
    ).logits
    return logits


def load_vllm_model(path: Path, batch_size: int | str, options: Mapping[str, Any]) -> Any:
    """lm-eval's vLLM model with the given vLLM `options`. Raises StatetrimError without vLLM or
    lm-eval, or if `options` name the model, batch size or remote code, which are set here."""
    if importlib.util.find_spec("vllm") is None:
        raise StatetrimError(
            "--engine vllm needs vLLM in this environment, and it is not installed; "
            "install it, or leave out --engine to run in transformers"
        )
    stock_tasks_directory()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")  # send nothing over the network
    from lm_eval.models.vllm_causallms import VLLM

    fixed_options = {"pretrained": str(path), "batch_size": batch_size, "trust_remote_code": False}
    for name in options:
        if name in fixed_options:
            raise StatetrimError(f"{name!r} is not an option for vLLM here: evaluate sets it")
    return VLLM(**fixed_options, **options)


def run_task(
    lm: Any, model: str, task: Task, directory: Path, limit: int | None, report: ProgressCallback
) -> list[Score]:
    """Run one task, defined in `directory`, through `lm_eval.evaluate`; a score per metric except
    bits per byte, with every sample. Raises StatetrimError if lm-eval cannot load or run it, or if
    a result is not finite; OSError and out-of-memory errors of the run pass unchanged."""
    silence_libraries()
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(directory), include_defaults=False)
    with errors_of(f"lm-eval cannot open the task {task.name}"):
        task_dict = manager.load([task.name])
        lm_eval_task = task_dict["tasks"][task.name]
    if lm_eval_task.get_config("num_fewshot") is None:
        lm_eval_task.set_config(key="num_fewshot", value=0)
    # Not simple_evaluate, which also calls git and seeds generators that nothing here uses.
    try:
        lm.cache_hook = _RequestCounter(lm_eval_task, limit, report)
        results: Any = lm_eval.evaluate(
            lm=lm,
            task_dict=task_dict,
            limit=limit,
            log_samples=True,
            bootstrap_iters=0,  # intervals come from paired samples later
        )
    except (OSError, StatetrimError):
        raise
    except Exception as error:  # rows and tokenizers of users can make lm-eval fail anywhere
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
    """Takes the place of lm-eval's cache hook, which is called once per answered request."""

    def __init__(self, task: Any, limit: int | None, report: ProgressCallback) -> None:
        samples = len(task.eval_docs)
        self.done, self.total, self.report = 0, min(samples, limit or samples), report
        if task.OUTPUT_TYPE == "multiple_choice":
            self.total *= len(task.doc_to_choice(task.eval_docs[0]))
        report(0, self.total)

    def add_partial(self, *_: Any) -> None:
        """Count one request; the total grows if samples have more choices than the first."""
        self.done += 1
        self.report(min(self.done, self.total), max(self.total, self.done))


def _to_score(
    model: str, task: Task, metric: str, samples: list[dict[str, Any]], higher_is_better: bool
) -> Score:
    """A score from lm-eval's samples, each a value or a pair of value and weight."""
    unit = PERPLEXITY if "perplexity" in metric else SHARE
    is_weighted = isinstance(samples[0][metric], tuple | list)
    pairs = [sample[metric] if is_weighted else (sample[metric], 1) for sample in samples]
    values, weights = [float(value) for value, _ in pairs], [float(weight) for _, weight in pairs]
    if not all(map(isfinite, values)):
        raise StatetrimError(f"{model} gives likelihoods that are not numbers on {task.name}")
    return Score(
        model=model,
        task=task.name,
        metric=metric,
        unit=unit.name,
        higher_is_better=higher_is_better and unit is not PERPLEXITY,
        samples=values,
        weights=weights if is_weighted else None,
    )


def silence_libraries() -> None:
    """Switch off progress bars and warnings of lm-eval, datasets and transformers.

    Raises StatetrimError without lm-eval.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    stock_tasks_directory()
    from transformers.utils import logging as transformers_logging

    import_datasets().disable_progress_bars()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    for name in ("lm_eval", "datasets"):
        logging.getLogger(name).setLevel(logging.ERROR)
