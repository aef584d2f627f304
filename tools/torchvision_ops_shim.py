"""Let torchvision's CUDA wheel import on a CPU build of torch.

Some registries carry only CUDA builds of torchvision. On a CPU torch their compiled operators cannot
load, and `import torchvision` then fails while it registers the shapes of `nms` and `qnms`. vLLM's
Qwen3-VL needs torchvision's transforms, not those operators, so this module declares the two schemas
just before torchvision is first imported, and only if the compiled operators cannot be loaded.

Development set-up only: `tools/setup_env.sh` copies it into the virtual environment with a `.pth` file,
which also reaches the engine processes that vLLM spawns. It is not part of the package.
"""

import importlib.abc
import importlib.machinery
import sys

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
        torch.ops.load_library(f"{package_dir}/_C.so")
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in SCHEMAS:
            library.define(schema)
        torch._mai_torchvision_shim = library  # the definitions live as long as this object


def install() -> None:
    """Called from the `.pth` file at interpreter start; imports nothing heavy."""
    sys.meta_path.insert(0, _BeforeTorchvision())
