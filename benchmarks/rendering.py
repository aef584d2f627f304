"""Images per second that vLLM's renderer prepares in this process and in processes of its own (`renderer_processes`).

The checkpoint is tiny, but its image processor has the limits of Qwen3-VL, so images keep their size. Nothing is sent
to an engine. In each measurement all prompts of one size are rendered, as a run would do it, all at once:

    first     every prompt has a new image
    cached    the same images with another text, as in the later calls of a sample

    python benchmarks/rendering.py                                  # about 3 minutes on 2 cores
    python benchmarks/rendering.py --processes 1 2 4 --repeats 5

The ways are interleaved, and the table shows medians. `CPU ms` is the CPU time per prompt of this process and of all
renderer processes together; other programs hardly change it. `Event loop` is the CPU time of the event loop's thread
per 1,000 prompts; the loop also serves the engines.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from common import print_json, print_table
from loguru import logger
from make_tiny_pair import make_pair
from PIL import Image as PilImage

from lmms_eval_mai.contract import Image, Message
from lmms_eval_mai.engines.vllm.configuration import configure
from lmms_eval_mai.engines.vllm.renderer import Renderer
from lmms_eval_mai.engines.vllm.renderer_processes import RendererProcesses
from lmms_eval_mai.engines.vllm.renderer_sharing import with_image_cache
from lmms_eval_mai.run.config import parse

CHECKPOINTS = Path(__file__).resolve().parents[1] / ".checkpoints" / "tiny"
SIZES = {0.3: (640, 480), 1: (1180, 850), 2: (1640, 1220), 3: (2000, 1500)}
"""Megapixels -> width and height. The smallest is COCO's size. The others must be resized a little, to multiples of 32
pixels, like most images."""
PIXEL_LIMITS = {"shortest_edge": 65_536, "longest_edge": 16_777_216}
"""Those of Qwen3-VL's image processor."""
TEXTS = {"first": "Without thinking, answer.", "cached": "Please think step by step."}
CACHE_GIB = 4.0
"""vLLM's default size of the image cache."""


def make_checkpoint(folder: Path) -> Path:
    """Return a tiny checkpoint whose image processor has Qwen3-VL's limits."""
    small, _ = make_pair(CHECKPOINTS)
    shutil.copytree(small, folder)
    for name in ("processor_config.json", "preprocessor_config.json"):
        content = json.loads((folder / name).read_text())
        content.get("image_processor", content)["size"] = PIXEL_LIMITS
        (folder / name).write_text(json.dumps(content))
    return folder


def make_renderers(checkpoint: Path, counts: list[int]) -> dict[str, Renderer]:
    """Return a renderer for each way: in this process, and in so many processes."""
    from vllm.renderers import renderer_from_config

    config = parse({"mode": "small", "small": str(checkpoint), "small_engine": "vllm", "max_model_len": 4096})
    vllm_config = configure(config.small, None).vllm_config
    renderers: dict[str, Renderer] = {
        "this process": Renderer(renderer_from_config(with_image_cache(vllm_config, CACHE_GIB)))
    }
    for count in counts:
        changed = with_image_cache(vllm_config, CACHE_GIB / count)
        renderers[str(count)] = RendererProcesses(renderer_from_config(changed), changed, count)
    return renderers


def make_images(size: tuple[int, int], count: int) -> list[PilImage.Image]:
    """Return noise, which no step can compress."""
    rng = np.random.default_rng(0)
    return [PilImage.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)) for _ in range(count)]


async def render_all(renderer: Renderer, prompts: list[tuple[Message, ...]]) -> dict[str, float]:
    """Render all prompts at once. Returns prompts per second, CPU milliseconds per prompt of this process and of the
    renderer processes, and the event loop's CPU seconds per 1,000 prompts."""

    async def render(messages: tuple[Message, ...]) -> None:
        await renderer.render(messages)

    began = (time.process_time(), renderer_seconds(renderer), time.thread_time())
    wall_began = time.perf_counter()
    await asyncio.gather(*map(render, prompts))
    wall_s = time.perf_counter() - wall_began
    ended = (time.process_time(), renderer_seconds(renderer), time.thread_time())
    main_ms, renderers_ms, loop_ms = (
        1000 * (after - before) / len(prompts) for before, after in zip(began, ended, strict=True)
    )
    return {"per_s": len(prompts) / wall_s, "main_ms": main_ms, "renderers_ms": renderers_ms, "loop_s": loop_ms}


def renderer_seconds(renderer: Renderer) -> float:
    """Return the CPU seconds of the renderer's processes so far."""
    processes = renderer.processes if isinstance(renderer, RendererProcesses) else []
    times = [psutil.Process(process.pid).cpu_times() for process in processes]
    return sum(one.user + one.system for one in times)


async def measure(
    renderers: dict[str, Renderer], images: dict[float, list[PilImage.Image]], repeats: int
) -> dict[tuple[float, str, str], list[dict[str, float]]]:
    """Return (megapixels, `first` or `cached`, way) -> figures of each repeat."""
    found: dict[tuple[float, str, str], list[dict[str, float]]] = defaultdict(list)
    for repeat in range(-1, repeats):  # the first round is for first-time costs
        for megapixels, pixels in images.items():
            for way, renderer in renderers.items():
                named = [Image(one, f"{repeat}-{megapixels}-{number}") for number, one in enumerate(pixels)]
                for kind, text in TEXTS.items():
                    prompts = [(Message("user", (image, "What is shown?\n", text)),) for image in named]
                    figures = await render_all(renderer, prompts)
                    if repeat >= 0:
                        found[megapixels, kind, way].append(figures)
                await renderer.clear_caches()
        if repeat >= 0:
            logger.info(f"Repeat {repeat + 1} of {repeats}; load {psutil.getloadavg()[0]:.1f}")
    return found


def report(found: dict[tuple[float, str, str], list[dict[str, float]]], arguments: argparse.Namespace) -> None:
    """Print the medians."""
    medians = {
        key: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for key, runs in found.items()
    }
    rows = []
    for (megapixels, kind, way), median in medians.items():
        base = medians[megapixels, kind, "this process"]["per_s"]
        one = medians.get((megapixels, kind, "1"), {}).get("per_s")
        rows.append(
            (
                f"{megapixels:g}",
                kind,
                way,
                f"{median['per_s']:.1f}",
                f"{median['per_s'] / base:.2f}",
                f"{median['per_s'] / one:.2f}" if one else "",
                f"{median['main_ms']:.1f}",
                f"{median['renderers_ms']:.1f}",
                f"{median['loop_s']:.2f}",
                " ".join(f"{run['per_s']:.1f}" for run in found[megapixels, kind, way]),
            )
        )
    print_table(
        f"Rendering, medians of {arguments.repeats} runs",
        [
            *("Megapixels", "Rendering", "Renderer processes", "Prompts/s", "To this process", "To one process"),
            *("CPU ms, this process", "CPU ms, renderers", "Event loop, s per 1,000 prompts", "All runs, prompts/s"),
        ],
        rows,
    )
    figures: dict[str, Any] = defaultdict(dict)
    for (megapixels, kind, way), median in medians.items():
        figures[f"{megapixels:g} MP"][f"{kind}, {way}"] = median
    print_json("rendering", {"repeats": arguments.repeats, "images": arguments.images, **figures})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="*", default=[1, 2], help="numbers of renderer processes")
    parser.add_argument("--megapixels", type=float, nargs="*", choices=SIZES, default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--images", type=int, default=60, help="images of one megapixel in a measurement; others alike")
    arguments = parser.parse_args()
    logger.remove()
    logger.add(sys.stderr, level="INFO")
    images = {one: make_images(SIZES[one], max(8, round(arguments.images / one))) for one in arguments.megapixels}
    with tempfile.TemporaryDirectory() as folder:
        renderers = make_renderers(make_checkpoint(Path(folder) / "checkpoint"), arguments.processes)
        found = asyncio.run(measure(renderers, images, arguments.repeats))
        renderers.clear()
    report(found, arguments)


if __name__ == "__main__":
    main()
