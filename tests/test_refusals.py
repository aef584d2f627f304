"""What a user gives that cannot work: each rule once, as a command or as model arguments. It ends with one sentence
that names the argument, before an engine starts and before a file is written."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.folders import POPE, World
from support.own_command import run_command

from lmms_eval_mai import ArgumentError, EngineStartError, MaiCascade
from lmms_eval_mai.method.methods import MAI_CONFIDENCE
from lmms_eval_mai.run.calibration import Calibrated, Calibration

COMMANDS = """
ask --question Why? --gen_kwargs temprature=1 | temperature?
ask --question Why? --gen_kwargs logit_bias=1 | logit_bias; max_new_tokens
ask --question Why? --gen_kwargs until=Q: | until=Q:; stop=TEXT
ask --question Why? --model_args 'think=native,native_gen_kwargs={"temprature":1}' | In native_gen_kwargs, temprature
ask --question Why? --model_args transfer=sparse --dry-run | large_engine=vllm
ask --question Why? --image not_there.png --dry-run | not_there.png

doctor --model mai_cascad | mai_cascade
doctor --model_args pair=demo,batch_size=2 | batch_size
doctor --gpus L5 | --gpus L5
doctor --gpus 0.5 | --gpus 0.5
doctor --gpus 24 --model_args devices=3 | small_devices
doctor --gpus 24,24 --model_args small_devices=2 | small_devices
doctor --gpus 24 --model_args small_devices=first | small_devices=first
doctor --gpus 24 --model_args large_tensor_parallel_size=2 | tensor_parallel_size
doctor --gpus 24 --model_args small_gpu_memory_utilization=0.95 | small_gpu_memory_utilization=0.95
doctor --gpus 24 --model_args gpu_memory_utilization=0.6 | small_gpu_memory_utilization=0.6 and large_gpu

report runs --images | --html
report runs --html - | --html -
report runs --html file/x.html | --html file/x.html
report runs --tables 9 | --tables 9
report runs --tables rules | --tables rules; --min_confidence
report runs --min_confidence 0.9 | --method
report runs --method mai_confidence --min_confidence 0.9 2 | --min_confidence 2
report nothing | nothing; no run
report nowhere | nowhere does not exist

calibrate runs | full_rt
calibrate runs --method own_thinking | _r
calibrate pairs | other
calibrate runs --max_loss 0 | --max_loss 0
calibrate runs --confidence 1 | --confidence 1
calibrate runs --method mai | --method mai

compare --pair demo | --tasks
compare --pair demo --tasks shapes_s --tables 10 | --tables
compare --pair demo --tasks shapes_s --benchmarks shapes | --benchmarks
compare --pair demo --tasks shapes_s --min_confidence 2 | min_confidence=2
compare --pair demo --tasks shapes_s --include_path missing | --include_path missing
compare --pair demo --tasks shapes_s --limit 0 | --limit 0
compare --pair demo --tasks shapes_s --model_args method=small | method=small
compare --pair demo --tasks shapes_s --model_args device=cpu | device=cpu
compare --pair demo,demo.yaml --tasks shapes_s | --pairs; demo
compare --pair demo --benchmarks shaeps | --benchmarks shaeps; shapes?
compare --pair demo --benchmarks shapes --tables 10,12 | --tables 10,12
compare --pair demo --benchmarks chartqa --tables 6 | chartqa
compare --paper qwen --tasks shapes_s | --tasks
compare --paper qwen --pair demo | --pairs
compare --paper qwen --tables 10 | --tables
compare --paper qwen --model_args small=x | small
WORLD_SIZE=2 compare --pair demo --tasks shapes_s | WORLD_SIZE is 2

serve --max_queue -1 | max_queue=-1
serve --request_timeout 0 | request_timeout=0
serve --max_body_mib many | max_body_mib=many
serve --api_key_env NOT_SET_ANYWHERE | NOT_SET_ANYWHERE
serve --gen_kwargs temprature=1 | temperature?
serve --model_args pair=demo,store=here | store=here
serve --model_args engine=scripted,small=empty,large=empty --host 256.256.256.256 | 256.256.256.256
"""
"""Variables and a command | what is named."""

SLOW = """
compare --pair demo --tasks shapes_r | shapes_s
compare --pair demo --tasks shapes_s --gen_kwargs max_tokens=3 | max_tokens
"""
"""Commands that load tasks of lmms-eval."""

USAGE = """
ask --question Why? --imag x | --image?
ask | --question
doctor --model_arg x | --model_args?
calibrate x --looks=2 | --confidence
"""
"""The same for options that are unknown, missing or of an earlier version."""

ARGUMENTS = """
pair=dmo: Did you mean demo? | method=maj: mai, full_rt, small, large | method=none.yaml: cannot be read
method=full_rt.yaml: name of another method | demo: '='
method=mai,pair=demo, method=large: method=mai | small_a=[1,x=2],small_a=3: small_a=[1
pair=demo,batch_size=4: --model_args | pair=demo,engine=transformers,device=1: small_device
think=S: think=S; R, E | keep_store=2: true or false | log_prompts=yes: true or false | store=[x: JSON
max_open_samples=0: 1 | max_open_samples=true: number | max_new_tokens=nan: number | max_new_tokens=1.5: whole number
max_errors=-1: 0 | max_errors=1.5: max_errors=1.5; share below 1 | max_errors=many: number | engine_restarts=-1: 0
call_timeout=0: 0.001 | call_timeout=none: number | infovqa_match=anls,anls_threshold=2: 1 | anls_threshold=0: 0
anls_threshold=0.8: infovqa_match=anls | min_confidence=0.7: mai_confidence
method=mai_confidence,min_confidence=0: 0 | method=mai_confidence,min_confidence=none.json: calibrate
method=own_thinking,min_confidence=good.json: method=own_thinking
transfer=sparse,sparse_layer=2.5: layer | transfer=sparse,sparse_layer=0: layer | transfer=sparse,sparse_layer=1.0: 1
transfer=sparse,sparse_layer=true: layer | pair=demo,engine=transformers,transfer=sparse,sparse_layer=7: 6 layers
pair=demo,sparse_layer=2: transfer=sparse | method=large,transfer=sparse: such as mai
engine=transformers,method=own_thinking,transfer=sparse: such as mai
think=native,native_gen_kwargs=hot: mapping | native_gen_kwargs={"temperature":1}: think=native
max_thinking_tokens=9: think=native | large_assistant_model=a/b: speculative_config

large_engine=sglang: vllm, transformers, openai, scripted | small=a,engine=scripted: large=PATH
large=b,small=node-1:8000/v1: small=http://node-1:8000/v1 | engine=openai,small=a: http://HOST:PORT/v1
method=small,engine=openai: small=http://HOST:PORT/v1 | small_engine=vllm,small=http://me:pw@host/v1: small_engine
small=http://user:pw@host/v1: http://HOST:PORT/v1 | small=http:///v1: http://HOST:PORT/v1
small=HTTP://host:port/v1: http://HOST:PORT/v1 | small=http://host/v1?key=pw@: http://HOST:PORT/v1
small=[http://a/v1,http//user:pw@b/v1]: http://HOST:PORT/v1 | small=http://a/v1,small_concurrency=2.5: whole number
small=http://host/v1,small_retry_for=-1: 0 | small=http://host/v1,small_api_key=pw: api_key_env
small_mm_processor_kwargs={pw:5}: JSON | pair=demo,engine=transformers,small_chat_template_kwargs=low: mapping
pair=demo,engine=transformers,small_chat_template_kwargs={"enable_thinking":true}: enable_thinking

pair=demo,max_open_sample=8: max_open_samples? | engine=scripted,small=a,large=b,time_scal=0: time_scale?
engine=scripted,small=a,large=b,zzz=1: max_errors; time_scale | engine=scripted,small=a,large=b,large_seed=3: arguments
pretrained=x: small=NAME | pair=demo,small_max_model_length=5: max_model_len | pair=demo,small_devices=3: CPU
method=small,small=/no/such/checkpoint: does not exist | pair=demo,dtype=int3: vLLM | pair=demo,max_model_len=abc: vLLM
pair=demo,gpu_memory_utilization=3: vLLM | pair=demo,max_model_len=999999: max_model_len

pair=typo.yaml: 'large' | pair=list.yaml: 'small' | pair=steps.yaml: 'small' | pair=date.yaml: cannot be read
pair=zero.yaml: cannot be read | pair=none.yaml: cannot be read | pair=twice.yaml: method; line 4
method=mai_confidence,min_confidence=format.json: format | method=mai_confidence,min_confidence=number.json: calibrate
method=mai_confidence,min_confidence=text.json: calibrate | method=mai_confidence,min_confidence=share.json: calibrate
method=mai_confidence,min_confidence=steps.json: steps
"""
"""Arguments, of which the last one is wrong: what is expected."""

ASK, END = "{ask: large.simple}", "{stop: {exit: done, answer: large.simple}}"
FILES = {
    "file": "",
    "mine.yaml": "",
    "empty": "",
    "demo.yaml": "small: a\nlarge: b\n",
    "full_rt.yaml": f"[{ASK}, {END}]",
    "typo.yaml": "small: ./a\nlage: ./b",
    "list.yaml": "small: [x]\nlarge: y",
    "steps.yaml": "- 1",
    "date.yaml": "a: 2026-13-01",
    "zero.yaml": "\0",
    "twice.yaml": "small: a\nlarge: b\nmethod: mai\n'method': large",
}
"""The files that the arguments name."""
THRESHOLDS: dict[str, dict[str, Any]] = {
    "good": {},
    "format": {"format": 1},
    "number": {"benchmarks": 5},
    "text": {"benchmarks": {"pope": "x"}},
    "share": {"benchmarks": {"pope": 2}},
    "steps": {"steps": []},
}
"""Files of thresholds: what is wrong in each."""

STEPS = f"""
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
[{ASK}, {{stop: {{exit: a, answer: large.simple}}, sure: large.simple}}] | sure
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
"""The steps of a method in a file | what is said about them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    (folder / "nothing").mkdir()
    POPE.write(folder / "runs", "mai")
    for large in (POPE.large, "other"):
        for method in ("mai", "full_rt"):
            World("shapes", POPE.documents, large=large).write(folder / "pairs" / large / method, method)
    for name, change in THRESHOLDS.items():
        record = Calibration(
            {"mai_confidence": Calibrated(MAI_CONFIDENCE, {"pope": 0.8}, "", {"pope": 1})}, {}
        ).record()
        record["methods"]["mai_confidence"] |= change
        (folder / f"{name}.json").write_text(json.dumps(record | change))
    return folder


@pytest.fixture(autouse=True)
def nothing_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "ERROR")  # `doctor` sets it
    before = sorted(folder.rglob("*"))
    yield
    assert sorted(folder.rglob("*")) == before


def rows(text: str) -> list[list[str]]:
    return [row.rsplit(" | ", 1) for row in text.strip().split("\n") if row]


@pytest.mark.parametrize(
    ("code", "line", "named"),
    [
        *((1, *row) for row in rows(COMMANDS)),
        *((2, *row) for row in rows(USAGE)),
        *(pytest.param(1, *row, marks=pytest.mark.slow) for row in rows(SLOW)),
    ],
)
def test_a_command_that_cannot_work_ends_with_one_message(
    code: int, line: str, named: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line)
    if "=" in words[0]:
        monkeypatch.setenv(*words.pop(0).split("="))
    output = ["--output_path", "out"] if words[0] == "compare" else []
    ended, _, errors = run_command(capsys, *words, *output)
    (message,) = re.findall(r"^lmms-eval-mai\b.*: .+", errors, re.MULTILINE)
    assert ended == code and "Traceback" not in errors
    assert all(word in message for word in named.split("; ")), message


@pytest.mark.parametrize("case", [case for line in ARGUMENTS.split("\n") if line for case in line.split(" | ")])
def test_model_arguments_that_cannot_work_are_refused_with_their_value_and_what_is_expected(case: str) -> None:
    text, _, expected = case.rpartition(": ")
    message = refused(text)
    name = re.findall(r"(?:^|,)\s*(\w+)=", text)[-1:]
    assert all(word in message for word in (*name, *expected.split("; "))), message
    assert "pw" not in message


@pytest.mark.parametrize(("steps", "problem"), rows(STEPS))
def test_steps_that_cannot_work_are_refused_by_the_name_of_their_file(folder: Path, steps: str, problem: str) -> None:
    (folder / "mine.yaml").write_text(steps)
    message = refused("method=mine.yaml")
    assert "method=mine.yaml" in message and problem in message, message


def refused(model_args: str) -> str:
    """Return why lmms-eval gets no model with these arguments. No engine starts."""
    with pytest.raises((ArgumentError, EngineStartError)) as error:
        MaiCascade.create_from_arg_string(model_args)
    return str(error.value)
