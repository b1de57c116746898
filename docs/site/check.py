"""Opens the built site in a real browser and uses it as a reader would.

    python docs/site/check.py FOLDER CHROMIUM

Needs playwright, and Chromium at the path CHROMIUM (Debian, Ubuntu: apt-get install chromium).
"""

from __future__ import annotations

import functools
import http.server
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect, sync_playwright


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The URL of the site."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def search_finds(page: Page, url: str, text: str, title: str) -> None:
    """The search for ``text`` leads to the page with ``title``."""
    page.goto(f"{url}/index.html")
    box = page.locator("input.sidebar-search").first
    box.fill(text)
    box.press("Enter")
    expect(page.locator("#search-results li a", has_text=title).first).to_be_visible(timeout=30_000)


def navigation_leads(page: Page, url: str, entry: str, heading: str) -> None:
    """A click on ``entry`` at the side opens a page with ``heading``."""
    page.goto(f"{url}/index.html")
    page.locator(".sidebar-tree a.reference", has_text=entry).first.click()
    expect(page.locator("h1", has_text=heading).first).to_be_visible()


def themes_differ(page: Page, url: str) -> None:
    """The button changes between dark and light."""
    page.goto(f"{url}/index.html")
    seen = set()
    for _ in range(3):
        page.locator(".theme-toggle:visible").first.click()
        seen.add(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert len(seen) > 1, f"the background is always {seen}"


def code_is_copied(page: Page, url: str) -> None:
    """The button beside a code block copies its code."""
    page.goto(f"{url}/README.html")
    block = page.locator("div.highlight-python").first
    block.hover()
    block.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.strip()
    assert copied.strip() in block.inner_text(), copied


def diagrams_are_drawn(page: Page, url: str, path: str) -> None:
    """Each diagram of the page is a picture, and not its code."""
    page.goto(f"{url}/{path}")
    diagrams = page.locator(".mermaid")
    expect(diagrams.first).to_be_attached()
    for diagram in diagrams.all():
        expect(diagram.locator("svg")).to_be_visible(timeout=30_000)
        assert "error" not in diagram.inner_text().lower(), diagram.inner_text()


def phone_shows_all(page: Page, url: str) -> None:
    """On a narrow screen nothing sticks out, and the menu opens."""
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}/docs/options.html")
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 390, f"the page is {width} pixels wide on a screen of 390"
    page.locator(".nav-overlay-icon:visible").first.click()
    expect(page.locator(".sidebar-tree a.reference", has_text="Read me").first).to_be_in_viewport()
    page.set_viewport_size({"width": 1280, "height": 800})


def main() -> None:
    """All checks; the first that fails ends the program."""
    errors: list[str] = []
    with served(Path(sys.argv[1])) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=sys.argv[2], args=["--no-sandbox"])
        context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
        page = context.new_page()
        page.on("console", lambda one: errors.append(one.text) if one.type == "error" else None)
        page.on("pageerror", lambda one: errors.append(str(one)))
        # Everything is the site's own: nothing is asked of another server.
        page.route(lambda asked: not asked.startswith((url, "data:", "blob:")), lambda route: route.abort())
        search_finds(page, url, "maxPartitions", "Options")
        search_finds(page, url, "MalformedRecordError", "Troubleshooting")
        navigation_leads(page, url, "Guarantees", "Guarantees")
        navigation_leads(page, url, "API", "API")
        themes_differ(page, url)
        code_is_copied(page, url)
        for path in ("index.html", "docs/streaming.html", "docs/exactly-once.html", "docs/DESIGN.html"):
            diagrams_are_drawn(page, url, path)
        phone_shows_all(page, url)
        for built in sorted(Path(sys.argv[1]).rglob("*.html")):
            page.goto(f"{url}/{built.relative_to(sys.argv[1])}")
        browser.close()
    if errors:
        sys.exit("Errors in the browser's console:\n" + "\n".join(sorted(set(errors))))
    print("The site works in a browser.")


if __name__ == "__main__":
    main()
