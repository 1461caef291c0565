"""How the site is built.

python -m sphinx -W docs build/docs                     with the gallery: runs every example, takes minutes
python -m sphinx -W -D plot_gallery=0 docs build/docs   without running examples

Nothing is fetched from a network. Examples are given the folder ``SCORCH_DATA`` as ``--data``, where it
is set; name it from the root, since examples run elsewhere.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "docs")]

import line_breaks  # noqa: E402
import source_links  # noqa: E402

project = "Scorch"
author = "The Scorch developers"
copyright = "The Scorch developers"
release = version = "0.1"

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",  # Args, Returns, Raises
    "sphinx.ext.viewcode",  # [source] beside every signature
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["**/sg_execution_times.rst", "sg_execution_times.rst"]

# -- Pages ----------------------------------------------------------------------------------------------

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3  # [words](page.md#a-heading)

# -- Reference ------------------------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
toc_object_entries_show_parents = "hide"
autodoc_default_options = {"inherited-members": False, "undoc-members": False}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
nitpicky = True
nitpick_ignore_regex = [("py:.*", ".*")]  # types in signatures are not links; links between pages are checked

# -- Gallery --------------------------------------------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"\.py$",
    "ignore_pattern": r"__init__\.py$",
    "default_thumb_file": str(ROOT / "docs" / "_static" / "logo.svg"),
    "within_subsection_order": "gallery_options.ExampleOrder",
    "reset_argv": "gallery_options.example_arguments",
    "capture_repr": (),  # what is printed, not the value of the last line
    "remove_config_comments": True,
    "download_all_examples": False,
    "show_memory": False,
    "abort_on_example_error": True,
}

# -- Look -----------------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "Scorch"
html_static_path = ["_static"]
html_logo = html_favicon = "_static/logo.svg"
html_css_files = ["scorch.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "Scorch", "alt_text": "Scorch"},
    "show_toc_level": 2,
    "show_prev_next": True,
    "navigation_with_keys": False,
    "pygments_dark_style": "github-dark-colorblind",  # comments quieter than the code, with contrast
    "header_links_before_dropdown": 6,
    "footer_start": ["copyright"],
    "footer_end": [],
    # Pages with code beside algorithms have room for its lines instead.
    "secondary_sidebar_items": {"[!hm]**": ["page-toc"], "how/*": [], "migrate/*": []},
}
# Published sites of several versions stand side by side; see tools/release.py.
if published := os.environ.get("SCORCH_DOCS_VERSION"):
    site_root = os.environ.get("SCORCH_SITE_ROOT", "/")
    html_theme_options |= {
        "switcher": {"json_url": f"{site_root}switcher.json", "version_match": published},
        "navbar_end": ["version-switcher", "theme-switcher", "navbar-icon-links"],
        "check_switcher": False,
        "show_version_warning_banner": True,
    }
# Pages without others below them have no menu.
SINGLE = ["index", "cheat-sheet", "glossary", "faq", "what-works", "results", "changelog", "contributing"]
html_sidebars: dict[str, list[str]] = {page: [] for page in SINGLE}


def link_to_gallery(app: Any, page: str, source: list[str]) -> None:
    """Link to the gallery where pages link to the folder that it is built from, as they do on GitHub."""
    source[0] = source[0].replace("](../../examples)", "](../gallery/index)")


def setup(app: Any) -> None:
    app.connect("source-read", link_to_gallery)
    app.connect("html-page-context", line_breaks.insert)
    app.connect("viewcode-follow-imported", source_links.follow)
