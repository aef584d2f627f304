"""Multi-agent inference (arXiv 2604.04929) as an evaluated model of lmms-eval.

Importing the package makes its tasks visible to lmms-eval's `TaskManager`; plain `lmms-eval` commands
get the same through the entry point in `plugin.py`. Nothing heavy is imported here.
"""

from lmms_eval_mai.plugin import install

__version__ = "0.1.0"
__all__ = ["__version__"]

install()
