"""Open every page of the built site in headless Chromium, at two widths, light and dark.

    python docs/_site/crawl.py site [--shots FOLDER]

Fails where a link or an image leads nowhere, the console shows an error, a page asks for anything from elsewhere, or a page is
wider than the window. Needs `pip install playwright` and an installed Chromium.
"""

import argparse
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urldefrag, urlsplit

FLAGS = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
WINDOWS = (("phone", 390, "dark"), ("desktop", 1280, "light"))
SEARCHED = "gamma"


class QuietHandler(SimpleHTTPRequestHandler):
    """Serve files without a log."""

    def log_message(self, *_: Any) -> None:
        """Print nothing."""


def main() -> None:
    """Crawl, and print what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("site", type=Path)
    parser.add_argument("--shots", type=Path, help="a folder for a screenshot of each page")
    arguments = parser.parse_args()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(arguments.site)))
    Thread(target=server.serve_forever, daemon=True).start()
    root = f"http://127.0.0.1:{server.server_port}/"
    pages, problems = crawl(root, arguments.shots)
    for problem in sorted(set(problems)):
        print(problem)
    print(f"{pages} pages, {len(WINDOWS)} windows each: {len(set(problems))} problems")
    sys.exit(bool(problems))


def crawl(root: str, shots: Path | None) -> tuple[int, list[str]]:
    """Return how many pages the first page leads to, itself among them, and what is wrong with them."""
    from playwright.sync_api import sync_playwright

    visits = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        for window, width, scheme in WINDOWS:
            page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
            visits.append(Visit(page, root=root, window=window, shots=shots))
            visits[-1].follow_links()
            visits[-1].search()
            page.close()
        browser.close()
    return len(visits[0].anchors), [problem for visit in visits for problem in visit.problems]


class Visit:
    """Visit the pages of the site in one window."""

    def __init__(self, page: Any, *, root: str, window: str, shots: Path | None) -> None:
        self.page, self.root, self.window, self.shots = page, root, window, shots
        self.problems: list[str] = []
        self.anchors: dict[str, set[str]] = {}
        page.on("console", lambda message: self.note(message.type, message.text))
        page.on("pageerror", lambda error: self.note("error", str(error)))
        page.on("request", lambda request: self.note("request", request.url))

    def note(self, kind: str, text: str) -> None:
        """Remember an error of the console, or a request that leaves the site."""
        if kind == "error" or (kind == "request" and not text.startswith((self.root, "data:", "blob:"))):
            self.problems.append(f"{self.page.url}: {kind}: {text}")

    def follow_links(self) -> None:
        """Open every page, and ask for every file that a page links to."""
        queue, asked, wanted = [self.root], set(), set()
        while queue:
            url = queue.pop()
            if url in self.anchors:
                continue
            self.open(url)
            for link, anchor in links(self.page):
                if not link.startswith(self.root):
                    continue
                wanted.add((link, anchor))
                if link.endswith("/"):
                    queue.append(link)
                elif link not in asked and not self.page.request.get(link).ok:
                    self.problems.append(f"{url}: broken link {link}")
                asked.add(link)
        for link, anchor in wanted:
            if anchor and link in self.anchors and anchor not in self.anchors[link]:
                self.problems.append(f"no anchor {link}#{anchor}")

    def open(self, url: str) -> None:
        """Open one page, look at its width, and take its picture."""
        answer = self.page.goto(url, wait_until="load")
        self.anchors[url] = set(self.page.eval_on_selector_all("[id]", "all => all.map(each => each.id)"))
        if answer is None or not answer.ok:
            self.problems.append(f"{url}: {answer and answer.status}")
        if self.page.evaluate("document.documentElement.scrollWidth > window.innerWidth"):
            self.problems.append(f"{url}: wider than the window of a {self.window}")
        if self.shots is not None:
            name = urlsplit(url).path.strip("/").replace("/", "-") or "index"
            self.shots.mkdir(parents=True, exist_ok=True)
            self.page.screenshot(path=self.shots / f"{name}-{self.window}.png")

    def search(self) -> None:
        """Search for a word that many pages have."""
        self.page.goto(self.root)
        self.page.evaluate("document.querySelector('#__search').click()")
        self.page.locator("input.md-search__input").fill(SEARCHED)
        self.page.wait_for_selector(".md-search-result__item", timeout=20_000)


def links(page: Any) -> Iterator[tuple[str, str]]:
    """Yield where a page leads: addresses and anchors."""
    for link in page.eval_on_selector_all("a[href], img[src]", "all => all.map(each => each.href || each.src)"):
        address, anchor = urldefrag(link)
        yield address, anchor


if __name__ == "__main__":
    main()
