"""The studio: pages in the browser about runs, memory and the papers' experiments, and their JSON.

    routes = studio_routes(StudioSettings())     # mounted by the server next to /v1

The pages and their assets (`/studio/PAGE`, `/studio/assets/...`, `/studio/colors.css`) contain no data of the user and
need no API key; everything under `/studio/api/` does.
"""

from __future__ import annotations

from mnemo.serving.studio.routes import StudioSettings, studio_routes

__all__ = ["StudioSettings", "studio_routes"]
