"""The scripts of a page's charts, bundled once and then kept."""

import hashlib
import warnings
from importlib.metadata import version

from cayley.disk_cache import cache_folder, load, store
from cayley.lab.report.figures import VEGALITE

__all__ = ["load_scripts"]

# the modules that the page uses; they are bundled with all that they need
SNIPPET = "window.vegaEmbed = vegaEmbed;"


def load_scripts() -> str:
    """The scripts, from the user's cache, or made and put there.

    Bundling takes about three seconds, more than all the rest of a report.
    """
    import vl_convert

    everything = (version("vl-convert-python"), VEGALITE, SNIPPET)
    key = hashlib.sha256(repr(everything).encode()).hexdigest()[:32]
    path = cache_folder() / f"charts-{key}.js"
    if (kept := load(path)) is not None:
        return kept.decode()
    scripts = vl_convert.javascript_bundle(SNIPPET, VEGALITE)
    try:
        store(path, scripts.encode())
    except OSError as error:
        warnings.warn(
            f"the scripts of charts cannot be cached in {path.parent}, so every report bundles "
            f"them again: set CAYLEY_CACHE to a folder of your own ({error})",
            stacklevel=2,
        )
    return scripts
