"""Tables 1 to 4 and Figure 1 (a): the times of single calls to two models on vLLM, one call at a time.

    python experiments/latency/calls.py --pair qwen3vl-2b-8b --output_path out/latency

Every request has one new image of noise and a text, so no cache has any part of it. Tables 1 and 2 are vLLM's own times
of the processor and of the vision encoder (those of `vllm bench mm-processor`). Tables 3 and 4 are whole requests with
one output token, and with a forced number of output tokens. Cells that exceed the context of a model are left out.
"""

import argparse
import json
import os
import platform
import random
import re
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import PIL.Image

from lmms_eval_mai import parse

IMAGES = (256, 512, 1024, 2048, 4096)
"""Tables 1 and 2: width and height in pixels."""
TTFT = [(side, text) for side in (256, 512, 1024) for text in (64, 256, 512)]
"""Table 3: the image, and the tokens of the text."""
DECODING = [(256, 64), (256, 256), (512, 64), (512, 256)]
OUTPUT_TOKENS = (8, 128, 256, 512)
"""Table 4."""
WORD = " red"
"""One token in most tokenizers."""
WARM_UP = 1
"""Requests of each cell that do not count."""


class Model:
    """One model on vLLM."""

    def __init__(self, checkpoint: str, engine_args: dict[str, Any]) -> None:
        import torch
        from vllm import LLM

        given = {"max_num_seqs": 1, "limit_mm_per_prompt": {"image": 1}, "enable_mm_processor_stats": True}
        if not torch.cuda.is_available():  # else vLLM takes almost the whole memory and compiles for minutes
            given |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**28}
        self.name = checkpoint
        self.llm = LLM(checkpoint, **given, **engine_args)
        self.context = self.llm.llm_engine.model_config.max_model_len
        self.device = device_name()
        self.template = self._request(64, WORD, 1)["prompt_tokens"] - 1 - tokens_of(64)
        """Tokens of a prompt that are neither image nor text."""

    def measure(self, side: int, text_tokens: int, output_tokens: int, repeats: int) -> dict[str, float] | None:
        """Return the medians of some requests. None: the prompt and the output do not fit the context."""
        if tokens_of(side) + text_tokens + output_tokens > self.context:
            return None
        text = WORD * max(1, text_tokens - self.template)
        found = [self._request(side, text, output_tokens) for _ in range(WARM_UP + repeats)][WARM_UP:]
        return {name: statistics.median(one[name] for one in found) for name in found[0]}

    def _request(self, side: int, text: str, output_tokens: int) -> dict[str, float]:
        from vllm import SamplingParams
        from vllm.benchmarks.mm_processor import collect_mm_processor_stats

        image = PIL.Image.frombytes("RGB", (side, side), random.randbytes(3 * side * side))
        content = [{"type": "image_pil", "image_pil": image}, {"type": "text", "text": text}]
        sampling = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
        collect_mm_processor_stats(self.llm.llm_engine)  # the earlier requests
        began = time.perf_counter()
        (output,) = self.llm.chat([{"role": "user", "content": content}], sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        stats = collect_mm_processor_stats(self.llm.llm_engine)
        return {
            "seconds": seconds,
            "prompt_tokens": len(output.prompt_token_ids or ()),
            "preprocessing_s": sum(stats["apply_hf_processor_secs"]),
            "encoder_s": sum(stats["encoder_forward_secs"]),
        }


def tokens_of(side: int) -> int:
    """Return the tokens of a square image: Qwen3-VL has one for 32 x 32 pixels, if its processor keeps the size."""
    return (side // 32) ** 2


def measure(checkpoint: str, given: argparse.Namespace) -> tuple[pd.DataFrame, str]:
    """Return one row for each cell of Tables 1 to 4, in seconds, and the name of the device."""
    model = Model(checkpoint, given.engine_args)
    rows = []
    cells = [(1, side, 64, 1) for side in IMAGES] + [(3, *size, 1) for size in TTFT]
    cells += [(4, *size, output_tokens) for size in DECODING for output_tokens in given.output_tokens]
    for table, side, text_tokens, output_tokens in cells:
        found = model.measure(side, text_tokens, output_tokens, given.repeats)
        if found is not None:
            sizes = {"image": side, "text_tokens": text_tokens, "output_tokens": output_tokens}
            rows.append({"table": table, **sizes, **found})
    model.llm.llm_engine.engine_core.shutdown()  # the next model needs the memory
    return pd.DataFrame(rows), model.device


def speed(cells: pd.DataFrame) -> float:
    """Return "Avg Tok/s": the mean of output tokens / seconds over the cells of Table 4."""
    return float((cells["output_tokens"] / cells["seconds"]).mean())


def tables(found: dict[str, pd.DataFrame]) -> str:
    """Return Tables 1 to 4 and Figure 1 (a) as Markdown, in ms. `found`: model -> its cells, the small model first."""
    found = {"/".join(Path(name).parts[-2:]): cells for name, cells in found.items()}
    all_cells = pd.concat(cells.assign(model=name) for name, cells in found.items())
    texts = []
    for title, number, column, index in (
        ("Table 1: preprocessing, ms", 1, "preprocessing_s", ["image"]),
        ("Table 2: vision encoder, ms", 1, "encoder_s", ["image"]),
        ("Table 3: time to first token, ms", 3, "seconds", ["image", "text_tokens"]),
        ("Table 4: decoding, ms", 4, "seconds", ["image", "text_tokens", "output_tokens"]),
    ):
        cells = all_cells[all_cells["table"] == number].set_index([*index, "model"])[column]
        shown = (1000 * cells).unstack("model")[list(found)].round(2)
        texts.append(f"## {title}\n\n{shown.reset_index().to_markdown(index=False)}\n")
    small, large = (cells.query("table == 4 and image == 512 and text_tokens == 64") for cells in found.values())
    slope, first_s = np.polyfit(small["output_tokens"], small["seconds"], 1)
    crossing = pd.DataFrame(
        {
            "output tokens of the large model": large["output_tokens"],
            "its time, s": large["seconds"].round(3),
            "output tokens of the small model in this time": ((large["seconds"] - first_s) / slope).round(1),
        }
    )
    texts.append(f"## Figure 1 (a)\n\n{crossing.to_markdown(index=False)}\n")
    speeds = {name: speed(cells[cells["table"] == 4]) for name, cells in found.items()}
    texts.append("Avg Tok/s: " + ", ".join(f"{name} {value:.2f}" for name, value in speeds.items()) + ".\n")
    return "\n".join(texts)


def profile(device: str, found: dict[str, pd.DataFrame]) -> dict[str, Any]:
    """Return the times for `lmms-eval-mai report --profile` (Eq. 27)."""
    models = {}
    for name, cells in found.items():
        ttft_s = cells.loc[cells["table"] == 3, ["prompt_tokens", "seconds"]].to_numpy().tolist()
        models[name] = {"ttft_s": ttft_s, "tokens_per_s": speed(cells[cells["table"] == 4])}
    return {"device": device, "models": models}


def device_name() -> str:
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="qwen3vl-2b-8b", help="a named pair, or the path of a YAML file")
    parser.add_argument("--repeats", type=int, default=20, help="requests of each cell; the paper has 100")
    parser.add_argument("--output_tokens", type=int, nargs="+", default=OUTPUT_TOKENS, help="of Table 4")
    parser.add_argument(
        "--engine_args", type=json.loads, default={}, help='more of vLLM, such as {"dtype": "bfloat16"}'
    )
    parser.add_argument("--output_path", type=Path, default=Path("out/latency"))
    given = parser.parse_args()
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM would write 180 lines before the tables
    config = parse({"pair": given.pair})
    found, device = {}, ""
    for checkpoint in (config.small.model, config.large.model):
        found[checkpoint], device = measure(checkpoint, given)
    given.output_path.mkdir(parents=True, exist_ok=True)
    (given.output_path / "profile.json").write_text(json.dumps(profile(device, found), indent=1) + "\n")
    print(f"{device}\n\n{tables(found)}\nWrote {given.output_path / 'profile.json'}.")


if __name__ == "__main__":
    main()
