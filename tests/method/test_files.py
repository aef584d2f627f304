"""Methods in YAML files: what is refused, and that a method survives its own record."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.files import load, read_steps
from lmms_eval_mai.method.methods import METHODS, Method, steps_of

ASK, END = "{ask: large.simple}", "{stop: {exit: done, answer: large.simple}}"
REFUSED = f"""
{{ask: large.simple}} | list of steps
[] | list of steps
[7, {END}] | step 1
[{{ask: large.simple, stop: {{exit: done, answer: large.simple}}}}] | step 1
[{{ask: large.simple, to: small.think}}, {END}] | to is unknown
[{ASK}, {{stop: {{exit: done, answer: large.simple, least: 0.9}}}}] | least is unknown
[{{ask: middle.simple}}, {END}] | middle.simple is unknown
[{{ask: large.score}}, {END}] | large.score is unknown
[{{ask: []}}, {ASK}, {END}] | names no call
[{{stop: {{exit: done, answer: large.simple}}}}, {ASK}, {END}] | large.simple is not asked before
[{ASK}, {{stop: {{exit: done, answer: small.simple}}}}] | small.simple is not asked before
[{ASK}, {{stop: {{exit: a, answer: large.simple, agree: [large.simple, small.simple]}}}}, {END}] | small.simple is not
[{ASK}, {{stop: {{exit: a, answer: large.simple, agree: [large.simple]}}}}, {END}] | two calls
[{ASK}, {{stop: {{exit: a, answer: large.simple, sure: small.simple}}}}, {END}] | small.simple is not asked before
[{ASK}, {{stop: {{exit: a, answer: large.simple, sure: {{large.simple: 0}}}}}}, {END}] | probability
[{ASK}, {{stop: {{exit: a, answer: large.simple, sure: {{large.simple: 1.1}}}}}}, {END}] | probability
[{ASK}, {{stop: {{exit: a, answer: large.simple, sure: {{large.simple: true}}}}}}, {END}] | probability
[{ASK}, {{ask: large.think}}, {{stop: {{exit: a, answer: large.simple, sure: large.think}}}}, {END}] | large.think has
[{{ask: large.task}}, {{stop: {{exit: a, answer: large.task, sure: large.task}}}}] | large.task has no probability
[{ASK}, {{stop: {{exit: not a name, answer: large.simple}}}}] | exit
[{ASK}, {{stop: {{answer: large.simple}}}}] | exit
[{ASK}] | last step
[{ASK}, {{stop: {{exit: a, answer: large.simple, sure: large.simple}}}}] | last step
[{ASK}, {{stop: {{exit: early, answer: large.simple}}}}, {{ask: small.simple}}, {END}] | early
[{ASK}, {{stop: {{exit: done, answer: large.simple, sure: large.simple}}}}, {END}] | done is an exit twice
[{ASK}, {ASK}, {END}] | large.simple is asked twice
[{{ask: [large.simple, large.simple]}}, {END}] | large.simple is asked twice
[{ASK}, {{ask: large.transfer}}, {END}] | needs `of`
[{ASK}, {{ask: large.transfer, of: large.simple}}, {END}] | needs `of`
[{{ask: [small.think, large.transfer], of: small.think}}, {{stop: {{exit: a, answer: large.transfer}}}}] | needs `of`
[{{ask: small.think}}, {{ask: large.simple, of: small.think}}, {END}] | no effect
[{{ask: small.simple, ask: large.simple}}, {END}] | ask is given twice
[{ASK}, {{ask: small.think}}, {END}] | small.think is asked, and no later step uses it
[{ASK}, {{stop: {{exit: a, answer: large.simple, agree: [large.simple, large.simple]}}}}, {END}] | two calls
[{ASK}, {{stop: {{exit: a, answer: large.simple, sure: {{large.simple: 1, small.simple: 1}}}}}}, {END}] | names 2 calls
[{{ask: small.task}}, {ASK}, {END}] | small.task is only for a method with one call
"""
"""Steps, and a part of what is said about them."""


@pytest.mark.parametrize("refused", REFUSED.strip().split("\n"))
def test_steps_that_cannot_work_are_refused_by_the_name_of_the_file(tmp_path: Path, refused: str) -> None:
    steps, _, problem = refused.rpartition(" | ")
    (file := tmp_path / "mine.yaml").write_text(steps)
    with pytest.raises(ArgumentError) as error:
        load(file)
    assert f"method={file}" in str(error.value) and problem in str(error.value), error.value


@pytest.mark.parametrize("given", ["mia", "mine.yaml", "mine.txt", 7, True])
def test_a_name_that_is_neither_a_method_nor_a_yaml_file_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=f"method={given}"):
        load(given)


def test_a_file_may_have_the_name_of_a_method_only_with_its_steps(tmp_path: Path) -> None:
    file = tmp_path / "mai.yaml"
    for name in ("mai", "full_rt"):
        file.write_text(yaml.safe_dump(steps_of(METHODS[name])))
        if name == "mai":
            assert load(str(file)) == METHODS["mai"]
        else:
            with pytest.raises(ArgumentError, match="name of another method"):
                load(str(file))
    file.write_text("- [")
    with pytest.raises(ArgumentError, match="cannot be read"):
        load(str(file))


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_named_method_survives_its_record(method: Method) -> None:
    assert read_steps(method.name, steps_of(method), "") == method
