"""Serve the playground: one page, from files of this package and nowhere else."""

from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import Response

_FOLDER = files("setblock.server") / "page"
_KINDS = {".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}

page = APIRouter(include_in_schema=False)


def _add(path: str, name: str) -> None:
    async def send() -> Response:
        return Response((_FOLDER / name).read_bytes(), media_type=_KINDS[Path(name).suffix], headers=HEADERS)

    page.add_api_route(path, send, methods=["GET"], name=name)


_add("/", "index.html")
for _file in _FOLDER.iterdir():
    _add(f"/page/{_file.name}", _file.name)
