"""Sphinx's settings for the documentation as a site. `make docs` builds it, from a copy of the pages that
`stage.py` makes; the pages themselves are Markdown that also reads well on a forge."""

from pathlib import Path

from spark_kafka_native.version import __version__

project = "spark-kafka-native"
copyright = "the authors of spark-kafka-native"
version = release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinxcontrib.mermaid"]
root_doc = "index"
nitpicky = False  # docstrings name private types, too
suppress_warnings = [
    "myst.header",  # a page may begin at the second level
    "ref.python",  # `bytes` in a docstring is also the name of an attribute
]

mermaid_height = "auto"
mermaid_fullscreen = False

# Notebooks are shown as they were run last (tests/notebooks runs them).
nb_execution_mode = "off"
myst_heading_anchors = 4
myst_fence_as_directive = ["mermaid"]

# `make docs` keeps a copy of mermaid where npm can fetch it; otherwise diagrams are drawn by that of a CDN.
_static = Path(__file__).parents[2] / ".venv-docs/static"
if _static.is_dir():
    html_static_path = [str(_static)]
    mermaid_use_local = "mermaid/mermaid.esm.min.mjs"

default_role = "code"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"spark-kafka-native {__version__}"
html_show_sphinx = False
html_copy_source = False
copybutton_prompt_text = r">>> |\$ "
copybutton_prompt_is_regexp = True
