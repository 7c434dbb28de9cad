"""The page that all pages of the studio share, its assets, and the headers that keep foreign scripts out of it."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from mnemo.report.style import DARK, FONT, LIGHT, MONO

ASSETS = Path(__file__).parent / "assets"
PAGES = ("playground", "memory", "runs", "papers")
FIRST_PAGE = f"/studio/{PAGES[0]}"
INLINE_SCRIPT = re.compile(r'<script type="importmap">(.*?)</script>', re.DOTALL)
EXTRA = {"light": {"edge": "#8b93a1", "onaccent": "#ffffff"}, "dark": {"edge": "#667085", "onaccent": "#11141b"}}
"""Colours that only the studio needs: edges of controls, and text on the accent colour."""

# Browsers refuse scripts of another type; the table of the system may lack them or, on Windows, be wrong.
mimetypes.add_type("text/javascript", ".js")
mimetypes.add_type("text/javascript", ".mjs")


def shell_routes() -> list[BaseRoute]:
    return [
        Route("/", _to_first_page),
        Route("/studio", _to_first_page),
        Route("/studio/", _to_first_page),
        Route("/studio/colors.css", _colors),
        Mount("/studio/assets", _Assets(directory=ASSETS), name="assets"),
        Route("/studio/{page:str}", _shell),
    ]


def colors_css() -> str:
    """The colours of reports as variables: light, dark by the system's preference, and either by the page's switch."""
    light, dark = (
        "".join(f"--{name}:{color};" for name, color in (colors | EXTRA[theme]).items())
        for theme, colors in (("light", LIGHT), ("dark", DARK))
    )
    return (
        f":root{{color-scheme:light;--font:{FONT};--mono:{MONO};{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{color-scheme:dark;{dark}}}}}\n"
        f":root[data-theme=dark]{{color-scheme:dark;{dark}}}\n"
    )


def security_headers(page: str) -> dict[str, str]:
    """Only this server's scripts, styles and data; the import map, an inline script, is allowed by its digest."""
    digests = [
        base64.b64encode(hashlib.sha256(found.encode()).digest()).decode() for found in INLINE_SCRIPT.findall(page)
    ]
    scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src 'self' {scripts}; style-src 'self'; img-src 'self' blob: data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


class _Assets(StaticFiles):
    def file_response(self, full_path, stat_result, scope: Scope, status_code: int = 200) -> Response:  # type: ignore[override]
        response = super().file_response(full_path, stat_result, scope, status_code)
        # Browsers ask each time and get 304: a newer version of the package is never mixed with cached files.
        response.headers["Cache-Control"] = "no-cache"
        response.headers["X-Content-Type-Options"] = "nosniff"
        return response


def _to_first_page(request: Request) -> Response:
    return RedirectResponse(FIRST_PAGE)


def _colors(request: Request) -> Response:
    return Response(colors_css(), media_type="text/css", headers={"Cache-Control": "no-cache"})


def _shell(request: Request) -> Response:
    page = (ASSETS / "index.html").read_text(encoding="utf-8")
    # For other names the page itself says that there is no such page.
    status = 200 if request.path_params["page"] in PAGES else 404
    return HTMLResponse(page, status, headers=security_headers(page))
