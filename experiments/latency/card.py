"""Print the times of two models of Qwen3-VL on a card as JSON, from operator times that NVIDIA measured.

It needs `aiconfigurator==0.12.0` in an environment of its own, no GPU, nothing of this package, and a minute.
"""

import argparse
import contextlib
import io
import json
import logging
from importlib.metadata import version

SYSTEMS = ("b200_sxm", "b300_sxm", "gb200", "gb300", "h100_sxm", "h200_sxm", "l40s", "rtx_pro_6000_server")
"""Cards for which aiconfigurator has times of vLLM with pictures (2026-11-28)."""
BATCHES, CONTEXTS, WHOLE = (1, 2, 4, 8, 16, 32, 64, 128, 256), (256, 2048), 1024


def estimate(model: str, system: str, batch: int, prompt: int, output: int = 2, px: int = 0) -> tuple[float, float]:
    """Return the TTFT and the time of a token, in ms."""
    from aiconfigurator.cli.api import cli_estimate

    given = {"isl": prompt, "osl": output, "batch_size": batch, "prefix": 0, "num_images": int(px > 0)}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        model = f"Qwen/Qwen3-VL-{model}-Instruct"
        size = {"image_height": px, "image_width": px}
        found = cli_estimate(model, system, mode="static", backend_name="vllm", **given, **size)
    return found.ttft, found.tpot


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("system", choices=SYSTEMS, help="no card of 24 GB has times: measure it with planned.py")
    parser.add_argument("--models", nargs=2, default=["2B", "8B"], help="sizes of Qwen3-VL, such as 2B 4B")
    parser.add_argument("--px", type=int, default=720, help="width and height of a picture")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    image, text, models = round(given.px / 32) ** 2, 72, {}
    for side, name in zip(("small", "large"), given.models, strict=True):
        model = name, given.system
        models[side] = {
            "decode_ms": [[n, *(estimate(*model, n, context - 150, 300)[1] for context in CONTEXTS)] for n in BATCHES],
            "prefill_ms": [[n, estimate(*model, 1, n)[0]] for n in (16, 64, 256, WHOLE)]
            + [[n * WHOLE, estimate(*model, n, WHOLE)[0]] for n in (4, 16)],
            "encoder_ms": [[0, 0.0]]
            + [
                [n, estimate(*model, n, text, 2, given.px)[0] - estimate(*model, n, image + text)[0]]
                for n in (1, 4, 64)
            ],
        }
    device = f"{given.system}, {'+'.join(given.models)}, aiconfigurator {version('aiconfigurator')}"
    tokens = {"image": image, "text": text, "later": 40}
    record = {"device": device, "image": f"{given.px} px", "tokens": tokens, "contexts": CONTEXTS, "models": models}
    # Milliseconds of vLLM's core for a step, and of the main process for a call, an image and a token: assumed.
    print(json.dumps(record | {"core_ms": 0.8, "host_ms": {"call": 0, "image": 0, "token": 0}}))


if __name__ == "__main__":
    main()
