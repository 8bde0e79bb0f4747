"""Parts of layers in vLLM's cache: the calculator against the plugin, and devices against heads.

The plugins give each layer its own widths. MLX-LM is a fake here and vLLM is left out: `just
check-parts` runs vLLM's layers on any CPU.
"""

import json
import random
import re
import sys
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import statetrim as st
from helpers.cases import load_cases
from helpers.modules import load_module
from helpers.plugin_pages import HEADS, page_size, pages
from statetrim.cut.geometry import Geometry
from statetrim.serving.capacity.arithmetic import CacheModel, Settings, layer_bytes
from statetrim.serving.capacity.compare import state_layers
from statetrim.serving.capacity.parts import Heads, Paging, in_parts
from statetrim.serving.engines import find_engine
from statetrim.serving.engines.engine import PLUGIN_TYPES
from statetrim.serving.matrix import compatibility_of_geometry

HYBRID = {
    "model_type": "qwen3_next", "num_hidden_layers": 8, "hidden_size": 64, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "linear_conv_kernel_dim": 4,
    "linear_num_key_heads": 4, "linear_num_value_heads": 12, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}  # fmt: skip


def check_parts(seed: int) -> None:
    generator = random.Random(seed)
    key_heads, value_heads = generator.choice(HEADS)
    divisors = [n for n in range(1, 9) if key_heads % n == value_heads % n == 0]
    devices, drafts = generator.choice(divisors), generator.choice([0, 0, 3])
    state_bytes, width = generator.choice([4, 2]), generator.choice([64, 128])
    sides = [width * eighths // 8 for eighths in range(2, 9)]
    if generator.random() < 0.4:
        shapes = [(side, side) for side in generator.sample(sides, 3)]
    else:
        shapes = [(generator.choice(sides), generator.choice(sides)) for _ in range(4)]
    layers, inputs = tuple(range(len(shapes))), (2 * key_heads, value_heads)
    uniform = st.Geometry(layers, key_heads, value_heads, width, width, *inputs, 4)
    geometry = uniform.with_shapes(dict(enumerate(shapes)))
    caches = CacheModel(state_layers(geometry), 4, 2, 2, 2 * 256)
    settings = Settings(1, 1, state_bytes=state_bytes, speculative=drafts, devices=devices)
    size = page_size(state_bytes, 2 * (3 + drafts))
    heads = key_heads // devices, value_heads // devices
    whole = [pages.Heads(*heads, group.keys, group.values) for group in caches.states]
    for group, layer, stored in zip(
        caches.states, whole, in_parts(caches, geometry, settings), strict=True
    ):
        count = pages.number_of_parts(layer, whole, size)
        assert stored.layers == count * group.layers, (seed, layer, whole)
        stored_size = layer_bytes(stored, caches, settings, 3 + drafts)
        assert stored_size == size(layer.part(count)), (seed, layer, whole)


def test_a_page_is_a_multiple_of_a_kernel_block_of_tokens() -> None:
    geometry = st.Geometry((0,), 4, 4, 64, 64, 8, 4, 4)
    caches = CacheModel(state_layers(geometry), 4, 2, 2, 2 * 256)
    settings = Settings(1, 1, kv_bytes=1.0)
    assert Paging.of(caches, geometry, settings).unit == 16 * 2 * 2 * 256


def test_calculator_and_plugin_have_the_same_parts() -> None:
    for seed in range(1000):
        check_parts(seed)


@pytest.mark.slow
def test_ten_thousand_sets_of_shapes() -> None:
    for seed in range(10_000):
        check_parts(seed)


def write_config(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(HYBRID | fields))
    return path


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp", "mlx"])
@pytest.mark.parametrize(("fields", "to", "devices", "refusal"), load_cases("devices"))
def test_devices_that_cannot_share_the_heads_are_refused(
    fields: dict[str, int],
    to: str | None,
    devices: int,
    refusal: str | None,
    engine: str,
    tmp_path: Path,
) -> None:
    path = write_config(tmp_path, **fields)
    options = {"to": to, "memory_gib": 1, "devices": devices, "engine": engine}
    if refusal is None:
        rows = st.inspect(path, **options).deployment.capacity
        assert rows and all(row.fit.sequences > 0 for row in rows)
        return
    with pytest.raises(st.StatetrimError, match=refusal):
        st.inspect(path, **options)


def test_one_group_of_mamba2_is_copied_to_every_device_and_more_are_divided(tmp_path: Path) -> None:
    mamba = {
        "model_type": "mamba2", "num_hidden_layers": 2, "hidden_size": 64, "expand": 2,
        "num_heads": 16, "head_dim": 8, "state_size": 16, "conv_kernel": 4,
    }  # fmt: skip
    one = write_config(tmp_path, **mamba, n_groups=1)
    assert st.inspect(one, memory_gib=1, devices=16).deployment.capacity
    two = write_config(tmp_path, **mamba, n_groups=2)
    with pytest.raises(st.StatetrimError, match="4 devices cannot share 2 key heads"):
        st.inspect(two, memory_gib=1, devices=4)


def test_parts_divide_only_where_the_plugins_do() -> None:
    for (keys, values), count in product(HEADS, range(1, 49)):
        calculated, stored = (
            kind(keys, values, 64, 32).part(count) for kind in (Heads, pages.Heads)
        )
        assert (calculated and vars(calculated)) == (stored and vars(stored))


PLUGINS = Path(__file__).parents[2] / "plugins"
WIDTHS = {"0": [128, 128], "1": [64, 64]}


def test_other_model_types_have_no_plugin() -> None:
    source = (PLUGINS / "vllm" / "statetrim_vllm" / "models.py").read_text()
    names = re.findall(r"^class (Qwen\w+?)For", source, re.MULTILINE)
    types = {re.sub(r"(?<=[0-9])(?=[A-Z])", "_", name).lower() for name in names}
    assert {name.removesuffix("_text") for name in PLUGIN_TYPES} == types
    assert "qwen3_5_moe" in find_engine("vllm").plugin_types
    assert not find_engine("sglang").plugin_types
    uneven = Geometry((0, 1), 8, 8, 128, 128, widths=((128, 128), (64, 64)))
    for model_type in ("mamba2", "nemotron_h", "olmo_hybrid"):
        lines = compatibility_of_geometry(model_type, uneven)
        assert lines and all(line.verdict == "refused" for line in lines)


@pytest.mark.parametrize(
    ("heads", "narrow", "parts", "part"),
    [
        ((16, 32), (64, 64), 4, (4, 8)),  # Qwen3-Next
        ((16, 48), (64, 64), 4, (4, 12)),  # Qwen3.5-27B
        ((8, 24), (64, 64), 4, (2, 6)),  # one of two ranks
        ((16, 32), (64, 128), 2, (8, 16)),
        ((2, 4), (64, 64), 4, (1, 1)),  # two parts share a key head
        ((2, 6), (64, 64), 6, (1, 1)),  # four parts would need half a value head
        ((2, 4), (32, 32), 4, (1, 1)),  # sixteen would be needed
        ((16, 32), (128, 128), 1, (16, 32)),
    ],
)
def test_a_wide_layer_is_divided_into_parts_of_one_narrow_page(
    heads: tuple[int, int], narrow: tuple[int, int], parts: int, part: tuple[int, int]
) -> None:
    whole, thin = pages.Heads(*heads, 128, 128), pages.Heads(*heads, *narrow)
    assert pages.number_of_parts(whole, [whole, thin], page_size(4, 6)) == parts
    assert whole.part(parts) == pages.Heads(*part, 128, 128)
    assert pages.number_of_parts(thin, [whole, thin], page_size(4, 6)) == 1


def test_heads_are_divided_only_where_value_heads_stay_with_their_key_head() -> None:
    heads = pages.Heads(2, 6, 64, 64)
    assert [count for count in range(1, 8) if heads.part(count)] == [1, 2, 6]


def test_widths_are_found_where_a_config_has_them() -> None:
    plain, listed = SimpleNamespace(), SimpleNamespace(statetrim_widths=WIDTHS)
    for outer, text in ((listed, listed), (plain, listed), (listed, plain)):
        widths = pages.layer_widths(SimpleNamespace(hf_config=outer, hf_text_config=text))
        assert widths == {"0": (128, 128), "1": (64, 64)}
    assert pages.layer_widths(SimpleNamespace(hf_config=plain, hf_text_config=plain)) is None


def test_mlx_layers_have_their_own_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Args:
        linear_key_head_dim: int = 128
        linear_value_head_dim: int = 128

        @classmethod
        def from_dict(cls, config: dict[str, Any]) -> "Args":
            return cls()

    class Layer:
        def __init__(self, args: Args, layer_idx: int) -> None:
            self.widths = args.linear_key_head_dim, args.linear_value_head_dim

    stock: Any = ModuleType("qwen3_next")
    stock.ModelArgs, stock.Qwen3NextDecoderLayer = Args, Layer
    stock.Model = lambda args: [stock.Qwen3NextDecoderLayer(args, i) for i in range(3)]
    models: Any = ModuleType("mlx_lm.models")
    models.qwen3_next, models.qwen3_5 = stock, ModuleType("qwen3_5")
    monkeypatch.setitem(sys.modules, "mlx_lm", ModuleType("mlx_lm"))
    monkeypatch.setitem(sys.modules, "mlx_lm.models", models)
    module = load_module(PLUGINS / "mlx" / "statetrim_mlx.py")
    args = module.ModelArgs.from_dict({"model_type": "qwen3_next", "statetrim_widths": WIDTHS})
    assert [layer.widths for layer in module.Model(args)] == [(128, 128), (64, 64), (128, 128)]
    assert stock.Qwen3NextDecoderLayer is Layer, "the stock class is back"
