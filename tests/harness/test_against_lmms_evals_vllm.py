"""Our tasks through lmms-eval's own vllm model and through mai_cascade with method=small: the same model in fp32.

`tests/run/test_decoding.py` compares the output limits: with 4,096 tokens per answer the random model would take hours.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.tasks import BUILT_IN

from lmms_eval_mai.engines.vllm.configuration import ONE_PROCESS

TASKS = [*(f"{benchmark}_{variant}" for variant in ("s", "r") for benchmark in BUILT_IN), "pope_r_s2"]
LIMIT = 2
TOKENS = 32

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def lmms_evals_vllm(cores: None, tiny_pair: tuple[Path, Path]) -> Iterator[Any]:
    from lmms_eval.models.chat.vllm import VLLM

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        model = VLLM(
            model=str(tiny_pair[0]),
            dtype="float32",
            max_model_len=4096,
            enforce_eager=True,
            kv_cache_memory_bytes=64 << 20,
            distributed_executor_backend=ONE_PROCESS,
            max_new_tokens=TOKENS,  # the model uses the larger one of this and the task's
            batch_size=len(TASKS) * LIMIT,
        )
    yield model
    model.client.llm_engine.engine_core.shutdown()


def test_texts_scores_and_prompts_equal_those_of_lmms_evals_vllm(
    lmms_evals_vllm: Any, tiny_pair: tuple[Path, Path], evaluate: Callable[..., dict[str, Any]]
) -> None:
    prompts: list[int] = []
    chat = lmms_evals_vllm.client.chat

    def recorded(**arguments: Any) -> Any:
        outputs = chat(**arguments)
        prompts.extend(len(output.prompt_token_ids) for output in outputs)
        return outputs

    lmms_evals_vllm.client.chat = recorded
    options = {"limit": LIMIT, "gen_kwargs": f"max_new_tokens={TOKENS}"}
    theirs = evaluate(TASKS, options, lmms_evals_vllm)
    given = {"method": "small", "small": tiny_pair[0], "dtype": "float32", "max_model_len": 4096, "store": "off"}
    ours = evaluate(TASKS, options, **given)
    for task in TASKS:
        for field in ("resps", "filtered_resps", "target"):
            expected = [sample[field] for sample in theirs["samples"][task]]
            assert [sample[field] for sample in ours["samples"][task]] == expected and len(expected) == LIMIT
        # lmms-eval's MMMU scorer guesses the letter of a text without an answer at random, as all texts are here.
        assert task.startswith("mmmu") or ours["results"][task] == theirs["results"][task]
    samples = [sample for task in TASKS for sample in ours["samples"][task]]
    calls = [call for sample in samples for call in sample["token_counts"][0]["calls"]]
    assert sorted(call["prompt_tokens"] for call in calls) == sorted(prompts)
    assert len(calls) == (len(TASKS) + 1) * LIMIT  # two rounds of pope_r_s2
    assert len({call["text"] for call in calls}) > 0.9 * len(calls)  # otherwise the comparison would prove little
