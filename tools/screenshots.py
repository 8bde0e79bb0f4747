"""Open a page in headless Chromium as a phone and as a desktop, light and dark, and look at it.

    python tools/screenshots.py report/report.html pictures

Writes four screenshots and a PDF, and ends with exit code 1 when anything was requested from
elsewhere, overflows, fails to show, or is a serious violation by axe-core. Needs the system's
chromium, and `pip install playwright axe-playwright-python`.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SIZES = {"phone": (390, 844), "desktop": (1280, 900)}
SCHEMES = ("light", "dark")
SERIOUS = ("serious", "critical")

OVERFLOW = """() => {
  const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const free = [...document.querySelectorAll('body *')].filter(e =>
    e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.wide, pre'));
  return wide > 0 || free.length ? [wide, ...free.map(e => e.outerHTML.slice(0, 120))] : [];
}"""
UNSEEN = """() => [...document.querySelectorAll('img')].filter(i => !i.complete || !i.naturalWidth)
  .map(i => i.alt).concat([...document.querySelectorAll('svg')].filter(s =>
  !s.getBoundingClientRect().height).map(s => s.getAttribute('aria-label')))"""


FOLD = """() => [...document.querySelectorAll('.answer, header .note')].filter(e =>
  e.getBoundingClientRect().bottom > innerHeight).map(e => e.textContent.trim().slice(0, 80))"""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield started
        started.close()


def faults(started: Any, page_file: Path, pictures: Path | None) -> Iterator[str]:
    """A sentence for whatever is wrong with the page, in any of the four views."""
    for size, (width, height) in SIZES.items():
        for scheme in SCHEMES:
            where = f"{size}, {scheme}"
            context = started.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page = context.new_page()
            asked: list[str] = []
            said: list[str] = []
            page.on("request", lambda request, asked=asked: asked.append(request.url))
            page.on("console", lambda line, said=said: said.append(line.text))
            page.goto(page_file.resolve().as_uri())
            for url in asked[1:]:
                if not url.startswith("data:"):
                    yield f"{where}: requests {url[:120]}"
            yield from (f"{where}: the console says {line[:200]}" for line in said)
            yield from (f"{where}: overflows, {it}" for it in page.evaluate(OVERFLOW))
            yield from (f"{where}: below the fold, {it}" for it in page.evaluate(FOLD))
            yield from (f"{where}: not shown, {it}" for it in page.evaluate(UNSEEN))
            if pictures is not None:
                page.screenshot(path=pictures / f"{size}-{scheme}.png", full_page=True)
                if where == "desktop, light":
                    page.pdf(path=pictures / "print.pdf", format="A4")
            context.close()
            yield from _inaccessible(started, page_file, width, height, scheme, where)


def _inaccessible(
    started: Any, page_file: Path, width: int, height: int, scheme: str, where: str
) -> Iterator[str]:
    """axe-core is a script, so the page's own policy is set aside for it."""
    from axe_playwright_python.sync_playwright import Axe

    context = started.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.goto(page_file.resolve().as_uri())
    for violation in Axe().run(page).response["violations"]:
        if violation["impact"] in SERIOUS:
            yield f"{where}: {violation['id']}, {violation['nodes'][0]['html'][:160]}"
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("pictures", type=Path)
    arguments = parser.parse_args()
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    with browser() as started:
        found = list(faults(started, arguments.page, arguments.pictures))
    for sentence in found:
        print(sentence)
    print(f"{len(found)} faults; screenshots in {arguments.pictures}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
