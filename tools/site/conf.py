"""Configuration of Sphinx for the documentation site; `python -m tools.site` calls it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mnemo import __version__

project = "Mnemo"
author = "The Mnemo authors"
copyright = "The Mnemo authors, Apache-2.0"
release = version = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "tools.site.repository_links",
    "tools.site.docstrings",
    "tools.site.side_bar",
]
root_doc = "index"
exclude_patterns = ["docs/pictures"]
nitpicky = False

# Headings of code-hosting pages are link targets; so they are here, with the same names.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
myst_links_external_new_tab = False

default_role = "py:obj"  # `Name` in docstrings is a link if the name is documented, else code
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False
toc_object_entries_show_parents = "hide"
highlight_language = "text"
smartquotes_action = "q"  # quotation marks only: two hyphens begin an option of the command line

html_theme = "furo"
html_title = f"Mnemo {__version__}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
pygments_style = "default"
pygments_dark_style = "monokai"
BLUE, LIGHT_BLUE = "#1f5fa8", "#8ab8f0"
COLORS = ("color-brand-primary", "color-brand-content", "color-api-name", "color-api-pre-name")
html_theme_options = {
    "light_css_variables": dict.fromkeys(COLORS, BLUE),
    "dark_css_variables": dict.fromkeys(COLORS, LIGHT_BLUE),
}
