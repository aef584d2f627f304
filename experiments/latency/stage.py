"""One stage of the paper's prototype: all calls of one model in a new process, with a new vLLM engine.

    python experiments/latency/stage.py JOB      # a file of table_12.py

The calls have the images of the documents, prompts as long as those of MAI, and exactly its numbers of output tokens.
"""

import json
import sys
from pathlib import Path
from typing import Any

from lmms_eval_mai import task_dir

WORD = " red"
"""One token in most tokenizers. The template has about `TEMPLATE` tokens."""
TEMPLATE = 10


def images_of(task_name: str) -> Any:
    """Return a function that gives the images of a document of a task by its number."""
    from lmms_eval.tasks import TaskManager, get_task_dict

    manager = TaskManager(include_path=str(task_dir()), include_defaults=False)
    task = get_task_dict([task_name], manager, task_type="chat")[task_name]
    documents = task.eval_docs
    return lambda number: task.doc_to_visual(documents[number])


def main() -> None:
    import torch
    from vllm import LLM, SamplingParams

    job = json.loads(Path(sys.argv[1]).read_text())
    given = {"max_num_seqs": job["open"], "gpu_memory_utilization": job["share"], **job["engine_args"]}
    if not torch.cuda.is_available():  # else vLLM takes almost the whole memory and compiles for minutes
        given |= {"enforce_eager": True, "kv_cache_memory_bytes": 2**28}
    llm = LLM(job["model"], **given)
    images = images_of(job["task"])
    prompts, sampling = [], []
    for call in job["calls"]:
        text = WORD * max(1, call["prompt_tokens"] - call["image_tokens"] - TEMPLATE)
        content = [{"type": "image_pil", "image_pil": image.convert("RGB")} for image in images(call["doc_id"])]
        prompts.append([{"role": "user", "content": [*content, {"type": "text", "text": text}]}])
        sampling.append(SamplingParams(temperature=0, max_tokens=call["output_tokens"], ignore_eos=True))
    llm.chat(prompts, sampling, use_tqdm=False)


if __name__ == "__main__":
    main()
