"""How Sphinx builds the site: ``make docs``, offline, with warnings as errors."""

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

import cayley  # noqa: E402

project = "Cayley"
author = "the Cayley authors"
copyright = "the Cayley authors"
version = release = cayley.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    # of docs/_ext
    "docstrings",
    "equations",
    "generated",
    "links",
]
exclude_patterns = ["_build", "figures", "_ext"]

# pages
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 4
# Markdown that the command writes, and GitHub's, may begin below the first level
suppress_warnings = ["myst.header"]
html_math_renderer = "mathml"

# docstrings
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = ["Shapes"]
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_display_short_literal_types = True

# the look
html_theme = "pydata_sphinx_theme"
html_title = "Cayley"
html_static_path = ["_static"]
html_css_files = ["cayley.css"]
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    # wide tables need the room
    "secondary_sidebar_items": {
        "**": ["page-toc"],
        "results": [],
        "speed/cpu": [],
        "speed/gpu": [],
    },
    "show_prev_next": True,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": []}
html_copy_source = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
