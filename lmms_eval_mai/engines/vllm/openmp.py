"""Chooses the OpenMP library of an engine on a CPU.

vLLM's default is GCC's libgomp, from torch. The threads of libgomp keep their cores for milliseconds after each
computation, while this process needs a core to prepare images. vLLM's CPU build brings Intel's library on x86
processors and recommends to preload it. The threads of Intel's library leave their cores after `KMP_BLOCKTIME` ms, and
decoding is as fast (docs/benchmarks.md, "lmms-eval's own vLLM model").
"""

import os
from importlib import metadata
from pathlib import Path

PRELOADED = "LD_PRELOAD"
LIBRARIES = ("libgomp", "libiomp", "libomp")
"""GCC's, Intel's and LLVM's. vLLM preloads none if the user has preloaded one."""
BLOCKTIME_MS = "1"
"""With Intel's default of 200, images and decoding took 2 to 4% longer."""


def variables() -> dict[str, str]:
    """Return the variables with which an engine's process has Intel's library. Empty if the library is not installed,
    or if the user has preloaded a library."""
    preloaded = os.environ.get(PRELOADED, "")
    library = _intel()
    if library is None or any(name in preloaded for name in LIBRARIES):
        return {}
    paths = [preloaded] if preloaded else []
    return {PRELOADED: ":".join([*paths, library]), "KMP_BLOCKTIME": os.environ.get("KMP_BLOCKTIME", BLOCKTIME_MS)}


def add_what_vllm_preloads(environment: dict[str, str]) -> None:
    """Copy the libraries that vLLM has added to this process's variable, for the engine's processes only. vLLM adds
    them when it makes its configuration: its memory allocator, and libgomp if there is no other OpenMP library."""
    if PRELOADED in os.environ:
        environment[PRELOADED] = os.environ[PRELOADED]


def remove_registration(pid: int) -> None:
    """Remove the file with which Intel's library marks a process. An engine's process ends without doing it."""
    Path(f"/dev/shm/__KMP_REGISTERED_LIB_{pid}_{os.getuid()}").unlink(missing_ok=True)


def _intel() -> str | None:
    """Return the path of Intel's library. None if it is not installed, or if `LD_PRELOAD` cannot have its path."""
    try:
        files = metadata.files("intel-openmp") or []
    except metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())).resolve() for file in files if file.name == "libiomp5.so")
    return next((str(path) for path in found if path.is_file() and not set(" :") & set(str(path))), None)
