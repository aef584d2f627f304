"""Let torchvision's CUDA wheel import on a CPU build of torch, and hide a warning about Triton.

Some registries have only CUDA builds of torchvision. With a CPU torch their compiled operators do not load, and
`import torchvision` fails while it registers the shapes of `nms` and `qnms`. vLLM's Qwen3-VL needs the transforms of
torchvision and not these operators. So this module declares the two schemas before the first import of torchvision, but
only if the compiled operators do not load.

For development only, and not part of the package: `tools/setup_env.sh` copies this module into the virtual environment
with a `.pth` file, which also works for the engine processes that vLLM spawns.
"""

import importlib.abc
import importlib.machinery
import logging
import sys
from glob import glob

SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class _BeforeTorchvision(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torchvision":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.submodule_search_locations:
            _declare_missing_ops(spec.submodule_search_locations[0])
        return spec


def _declare_missing_ops(package_dir: str) -> None:
    import torch

    if hasattr(torch, "_mai_torchvision_shim"):
        return
    try:
        torch.ops.load_library(glob(f"{package_dir}/_C*.so")[0])  # since torchvision 0.29 it is _C_stable.so
    except (OSError, IndexError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            library.define(schema)
        torch._mai_torchvision_shim = library  # the definitions exist as long as this object


def install() -> None:
    """Install the import hook. The `.pth` file calls this at every start of Python, so it imports nothing heavy."""
    sys.meta_path.insert(0, _BeforeTorchvision())
    # "Triton is installed, but doesn't include CPU backend": vLLM writes it before it has read VLLM_LOGGING_LEVEL.
    logging.getLogger("vllm.triton_utils.importing").setLevel(logging.ERROR)
