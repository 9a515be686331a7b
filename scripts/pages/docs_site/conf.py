"""Sphinx's configuration of the documentation site; `scripts/pages/make_site.py` stages the pages and runs it."""

from pathlib import Path

from docs_site.docstrings import as_rst, without_types
from gxpo import __version__

project = "gxpo"
author = "The gxpo developers"
copyright = author
version = release = __version__
html_title = f"gxpo {__version__}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4  # anchors as GitHub makes them
myst_enable_extensions = ["attrs_inline"]
highlight_language = "text"
smartquotes = False  # -- and '' stand for themselves
suppress_warnings = ["myst.header", "misc.highlighting_failure"]  # levels that are skipped; console output with a lexer

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = [str(Path(__file__).with_name("static"))]
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_theme_options = {"navigation_with_keys": False, "sidebar_hide_name": False}
copybutton_prompt_text = "$ "


def setup(app):
    app.connect("autodoc-process-docstring", lambda app, what, name, of, options, lines: as_rst(lines))
    app.connect(
        "autodoc-process-signature", lambda app, what, name, of, *more: without_types(of) if what == "class" else None
    )
