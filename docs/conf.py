"""Sphinx configuration."""

import importlib.metadata

project = "excise"
author = "The excise developers"
copyright = "2026, the excise developers"
release = importlib.metadata.version("excise")
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "excise"
myst_enable_extensions = ["colon_fence", "deflist", "smartquotes"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
nitpicky = False
