"""The name of a run in lmms-eval's files, without `model_name`."""

import pytest
from lmms_eval.utils import sanitize_model_name, simple_parse_args_string

from lmms_eval_mai.harness.saved import run_name
from lmms_eval_mai.run.config import parse


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("", "mai_cascade-Qwen3-VL-2B-Instruct+Qwen3-VL-8B-Instruct-mai"),
        ("pair=demo,method=full_rt", "mai_cascade-demo-small+demo-large-full_rt"),
        ("pair=demo,method=own_thinking", "mai_cascade-demo-large-own_thinking"),
        ("engine=transformers,large=/my/8b,method=large", "mai_cascade-my-8b-large"),
        ("small=http://me:secret@node:1/v1,method=small", "mai_cascade-node:1-small"),
        ("large=http://node:1/v1,large_model=a/b,method=large", "mai_cascade-a-b-large"),
        ("engine=transformers,transfer=sparse,method=full_rt,model_name=mine", "mine"),
    ],
)
def test_a_run_is_named_by_its_models_and_by_what_it_does_with_them(arguments: str, name: str) -> None:
    found = run_name(parse(simple_parse_args_string(arguments)))
    assert found == name and "/" not in sanitize_model_name(found)


def test_a_name_is_short_enough_for_a_folder() -> None:
    config = parse({"engine": "transformers", "small": "/s/" + 250 * "a", "large": "/l/" + 250 * "b"})
    assert len(run_name(config)) <= 200
