"""Write the reference pages that are read in a clone, too: docs/reference/*.md, from the code.

    python docs/_site/reference.py

`make docs` runs this. The pages are committed, and `tests/test_site.py` checks that they are current. The pages of the Python
packages hold directives for mkdocstrings, so api.py writes them into the site only.
"""

import runpy
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "reference"
SCRIPTS = {
    "command-line.md": "command_line.py",
    "settings.md": "settings.py",
    "recipe-keys.md": "recipe_keys.py",
    "http-api.md": "http_api.py",
}
"""Page -> the script next to this one whose `page` returns it."""

NOTE = "<!-- Written by docs/_site/reference.py from the code: change the code, then run it. -->\n"


def written(page: str) -> str:
    """Return the text of one page of `SCRIPTS`."""
    script = runpy.run_path(str(Path(__file__).parent / SCRIPTS[page]))
    return f"{NOTE}\n{script['page']()}"


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    for page in SCRIPTS:
        (FOLDER / page).write_text(written(page), encoding="utf-8")
    print(f"docs/reference/ has {len(SCRIPTS)} pages")


if __name__ == "__main__":
    main()
