"""Check a page in headless Chromium: phone and desktop, light and dark.

    python tools/screenshots.py report/report.html pictures

Writes four screenshots and a PDF. Exit code 1 if anything is requested from elsewhere, overflows,
fails to show, or is a serious violation by axe-core. Needs the system's chromium, and
`pip install playwright axe-playwright-python`.
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
NOT_SHOWN = """() => [...document.querySelectorAll('img')]
  .filter(i => !i.complete || !i.naturalWidth).map(i => i.alt)
  .concat([...document.querySelectorAll('svg')].filter(s => !s.getBoundingClientRect().height)
    .map(s => s.getAttribute('aria-label')))"""


BELOW_FOLD = """() => [...document.querySelectorAll('.answer, header .note')].filter(e =>
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


def faults(chromium_browser: Any, page_file: Path, pictures: Path | None) -> Iterator[str]:
    """A sentence per fault of the page in any of the four views."""
    for size, (width, height) in SIZES.items():
        for scheme in SCHEMES:
            view = f"{size}, {scheme}"
            context = chromium_browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page = context.new_page()
            requested_urls: list[str] = []
            console_lines: list[str] = []
            page.on(
                "request",
                lambda request, requested_urls=requested_urls: requested_urls.append(request.url),
            )
            page.on(
                "console", lambda line, console_lines=console_lines: console_lines.append(line.text)
            )
            page.goto(page_file.resolve().as_uri())
            for url in requested_urls[1:]:
                if not url.startswith("data:"):
                    yield f"{view}: requests {url[:120]}"
            yield from (f"{view}: the console says {line[:200]}" for line in console_lines)
            yield from (f"{view}: overflows, {element}" for element in page.evaluate(OVERFLOW))
            yield from (
                f"{view}: below the fold, {element}" for element in page.evaluate(BELOW_FOLD)
            )
            yield from (f"{view}: not shown, {element}" for element in page.evaluate(NOT_SHOWN))
            if pictures is not None:
                page.screenshot(path=pictures / f"{size}-{scheme}.png", full_page=True)
                if view == "desktop, light":
                    page.pdf(path=pictures / "print.pdf", format="A4")
            context.close()
            yield from _inaccessible(chromium_browser, page_file, width, height, scheme, view)


def _inaccessible(
    chromium_browser: Any, page_file: Path, width: int, height: int, scheme: str, view: str
) -> Iterator[str]:
    """Serious axe-core violations; the page's policy is bypassed, which forbids its script."""
    from axe_playwright_python.sync_playwright import Axe

    context = chromium_browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, bypass_csp=True
    )
    page = context.new_page()
    page.goto(page_file.resolve().as_uri())
    for violation in Axe().run(page).response["violations"]:
        if violation["impact"] in SERIOUS:
            yield f"{view}: {violation['id']}, {violation['nodes'][0]['html'][:160]}"
    context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("pictures", type=Path)
    arguments = parser.parse_args()
    arguments.pictures.mkdir(parents=True, exist_ok=True)
    with browser() as chromium_browser:
        sentences = list(faults(chromium_browser, arguments.page, arguments.pictures))
    for sentence in sentences:
        print(sentence)
    print(f"{len(sentences)} faults; screenshots in {arguments.pictures}")
    sys.exit(1 if sentences else 0)


if __name__ == "__main__":
    main()
