"""Bring the pages of the repository's root into the site, and what pages link to in the repository outside of docs/.

README.md becomes the first page. A link to a file of code or YAML leads to a page that shows it, a link to a folder to a page
that lists it, and a link to any other file to a copy.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
}
"""File of the root -> its page."""

SHOWN = {".py": "python", ".yaml": "yaml", "": "text"}
LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the root's pages, and whatever pages link to outside of docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    for target in sorted({target for file in files.documentation_pages() for target in outside(file)}):
        add(files, config, target)
    return files


def outside(file: File) -> list[str]:
    """Return the paths from the root that a page links to and that are no page of the site."""
    found = [from_root(file.src_uri, match["target"]) for match in LINK.finditer(file.content_string)]
    return [path for path in found if path and path not in PAGES and not path.startswith("docs/")]


def from_root(page: str, target: str) -> str | None:
    """Return the path from the root that a link of a page leads to, or None where it does not lead to a file."""
    if re.match(r"[a-z]+:", target):
        return None
    place = next((source for source, name in PAGES.items() if name == page), f"docs/{page}")
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), target))


def add(files: Files, config: MkDocsConfig, target: str) -> None:
    """Add one file or folder of the repository, as a page where it can be read."""
    path = ROOT / target
    if not path.exists():
        return  # MkDocs says so
    if path.is_dir():
        names = sorted(
            each.name + "/" * each.is_dir() for each in path.iterdir() if not each.name.startswith(("_", "."))
        )
        listed = "\n".join(f"- `{name}`" for name in names)
        text = f"# `{target}/`\n\n{listed}\n"
    elif path.suffix in SHOWN:
        text = f"# `{target}`\n\n````{SHOWN[path.suffix]}\n{path.read_text(encoding='utf-8')}````\n"
    else:
        files.append(File.generated(config, address(target), abs_src_path=str(path)))
        return
    files.append(File.generated(config, address(target), content=f"---\nsearch:\n  exclude: true\n---\n{text}"))


def address(target: str) -> str:
    """Return where a path from the root is found in the site, as a source path of MkDocs."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", target.removeprefix("docs/"))  # docs/_site/notebooks.py writes the page
    is_page = (ROOT / target).is_dir() or Path(target).suffix in SHOWN
    return f"repository/{target}{'.md' * is_page}"


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Lead links to where their targets are in the site."""
    here = page.file.src_uri

    def led(match: re.Match[str]) -> str:
        target = from_root(here, match["target"])
        if target is None:
            return match[0]
        path = posixpath.relpath(address(target), posixpath.dirname(here) or ".")
        return f"{match['before']}{path}{match['anchor'] or ''})"

    return LINK.sub(led, markdown)
