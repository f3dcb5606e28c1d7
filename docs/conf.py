"""How Sphinx builds these pages: ``make docs``. Nothing is loaded from a network, when they are built or read."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs"), str(ROOT / "tools")]

import rocmkern  # noqa: E402

project = "rocmkern"
copyright = "rocmkern contributors; MIT license"
version = release = rocmkern.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "myst_parser", "_extension"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_extension", "_build"]

# Docstrings: numpydoc, with names in single backticks that are links where they name something public.
default_role = "py:obj"
napoleon_google_docstring = False
napoleon_use_rtype = False
# Types are words of ours ("array, ``[B, S]``"), which are not to be looked up.
napoleon_use_param = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"
add_module_names = False
python_use_unqualified_type_names = True
maximum_signature_line_length = 90

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"rocmkern {version}"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["rocmkern.css"]
# Fences of output, of commands and of files of other kinds have no lexer of their own.
suppress_warnings = ["misc.highlighting_failure"]
