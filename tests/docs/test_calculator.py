"""The calculator page computes what the package computes, in a browser and in JavaScript."""

import dataclasses
import json
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from helpers.modules import load_module
from statetrim.serving.capacity import arithmetic
from statetrim.serving.engines import counted_engines

ROOT = Path(__file__).parents[2]
VECTORS = 600


write_calculator = load_module(ROOT / "tools" / "write_calculator.py")
screenshots = load_module(ROOT / "tools" / "screenshots.py")
RUN = """vectors => vectors.map(([engine, model, kind, settings]) =>
  calculator.engines[engine](calculator.models[model][kind], settings))"""


def vectors(models: dict[str, Any]) -> list[tuple[str, str, str, dict[str, Any]]]:
    draw, chosen = random.Random(0), []
    for i in range(VECTORS):
        model = draw.choice(sorted(models))
        kinds = [kind for kind in ("released", "cut", "by_layer") if kind in models[model]]
        heads = models[model]["released"]["states"][0]["heads"]
        settings = arithmetic.Settings(
            memory=int(draw.uniform(0.05, 200) * 2**30),
            context=draw.choice((1, 500, 4096, 12345, 10**6)),
            state_bytes=draw.choice((4, 2)),
            kv_bytes=draw.choice((2, 1, 34 / 32)),
            speculative=draw.choice((0, 0, 1, 3, 7)),
            prefix_caching=draw.random() < 0.7,
            devices=draw.choice([n for n in (1, 2, 4) if heads % n == 0]),
            replay=draw.random() < 0.2,
            state_ratio=draw.choice((0.9, 0.0, 0.3)),
            slots=draw.choice((0, 3)),
            coded_share=draw.choice((0, 0.04)),
            flashinfer=draw.random() < 0.2,
        )
        engine = tuple(counted_engines())[i % len(counted_engines())]
        chosen.append((engine, model, draw.choice(kinds), dataclasses.asdict(settings)))
    return chosen


def cache_model(fields: dict[str, Any]) -> arithmetic.CacheModel:
    states = tuple(arithmetic.StateLayers(**layers) for layers in fields["states"])
    return arithmetic.CacheModel(**fields | {"states": states})


def run(script: str, chosen: list[Any]) -> Any:
    """What the page computes for the vectors, in node or, without it, in a browser."""
    if shutil.which("node"):
        code = f"{script}\nconsole.log(JSON.stringify(({RUN})({json.dumps(chosen)})))"
        done = subprocess.run(["node"], input=code, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)
    if screenshots.chromium() is None:
        pytest.skip("needs node or chromium")
    with screenshots.browser() as browser:
        page = browser.new_page()
        page.add_script_tag(content=script)
        return page.evaluate(RUN, chosen)


def test_the_page_and_the_package_agree_on_every_figure() -> None:
    models, script = write_calculator.page_models(), write_calculator.script()
    chosen = vectors(models)
    for (engine, model, kind, settings), computed in zip(chosen, run(script, chosen), strict=True):
        function = counted_engines()[engine].fit
        assert function is not None
        expected = function(cache_model(models[model][kind]), arithmetic.Settings(**settings))
        assert computed == dataclasses.asdict(expected), (engine, model, kind, settings)


def test_the_form_shows_what_fits_and_follows_the_keyboard() -> None:
    if screenshots.chromium() is None:
        pytest.skip("needs chromium")
    folder = ROOT / "docs" / "calculator"
    form = (folder / "form.html").read_text().partition("<script")[0]
    with screenshots.browser() as browser:
        page = browser.new_page()
        page.set_content(f'<h1 id="calculator">Calculator</h1>{form}')
        page.add_script_tag(content=write_calculator.script())
        page.add_script_tag(content=(folder / "page.js").read_text())
        rows = page.locator("#calculator-result tr").all_inner_texts()
        assert len(rows) == 5 and rows[0].split()[3] == "69.6"
        assert rows[0].endswith("784 tokens")
        page.fill("input[name=context]", "784")
        rows = page.locator("#calculator-result tr").all_inner_texts()
        assert rows[0].endswith("784 tokens, never") and rows[1].endswith("400 tokens")
        page.fill("input[name=context]", "4096")
        page.focus("select[name=engine]")
        page.keyboard.press("ArrowDown")
        assert "26" in page.locator("#calculator-result tr").first.inner_text()
        assert "sglang.launch_server" in page.inner_text("#calculator-command")


def test_what_has_no_translation_is_refused() -> None:
    with pytest.raises(TypeError, match="line 3: no translation for ListComp"):
        write_calculator.javascript('def f(x):\n    """Text."""\n    return [i for i in x]\n')
