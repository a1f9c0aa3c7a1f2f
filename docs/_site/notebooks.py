"""Show the notebooks of docs/notebooks/ as pages of the site, and run them again.

    python docs/_site/notebooks.py [NOTEBOOK ...]

runs each notebook and keeps its output, without what libraries write to stderr. `pytest --nbmake docs/notebooks` only checks
that they run.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add a page for each notebook."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=page(notebook, name=path.name)))
    return files


def page(notebook: dict[str, Any], *, name: str) -> str:
    """Return a notebook in Markdown: its texts, its code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
        else:
            parts.append(f"```python\n{source}\n```")
            parts += [f"```text\n{text.rstrip()}\n```" for text in map(printed, cell["outputs"]) if text.strip()]
    link = f'This page is a notebook. <a href="../{name}" download>Download {name}</a> to run it.'
    return "\n\n".join([*parts[:1], link, *parts[1:]]) + "\n"


def printed(output: dict[str, Any]) -> str:
    """Return the text of one output."""
    return "".join(output.get("text") or output.get("data", {}).get("text/plain", ""))


def main() -> None:
    """Run the notebooks that are named, or all, and keep their output."""
    import nbformat
    from nbclient import NotebookClient

    form: Any = nbformat  # half typed
    for path in [Path(name) for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = form.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(NOTEBOOKS)}}).execute()
        for cell in notebook.cells:
            cell.metadata.clear()
            if cell.cell_type == "code":
                cell.execution_count = None
                cell.outputs = [form.from_dict(each) for each in kept(cell.outputs)]
        notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        form.write(notebook, path)
        print(f"ran {path.name}")


def kept(outputs: list[Any]) -> list[Any]:
    """Return what a cell printed, as one output without colours; other kinds of output, but not stderr."""
    streams = [each for each in outputs if each.get("name") == "stdout"]
    others = [each for each in outputs if each["output_type"] != "stream"]
    if streams:
        text = "".join(printed(each) for each in streams)
        streams = [{"output_type": "stream", "name": "stdout", "text": COLOUR.sub("", text).rstrip() + "\n"}]
    return [*streams, *others]


if __name__ == "__main__":
    main()
