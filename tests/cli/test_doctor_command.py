"""`lmms-eval-mai doctor` on commands that lmms-eval would refuse or that need the hub."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from datasets.load import CachedDatasetModuleFactory
from huggingface_hub import constants
from support.processes import Command as Process

from lmms_eval_mai.cli import command_line, hub, tasks
from lmms_eval_mai.cli.command_line import Command, check_arguments, check_decoding, check_for_plan, check_options, read
from lmms_eval_mai.cli.hub import Hub
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.harness.model import MaiCascade
from lmms_eval_mai.run.config import parse

OFFLINE = Hub("https://huggingface.co", "huggingface.co cannot be reached")


def test_doctor_finds_all_that_lmms_eval_would_refuse(command: type[Process], tmp_path: Path) -> None:
    line = (
        "doctor", "torchrun", "--nproc_per_node", "2", "-m", "lmms_eval", "--model", "mai_casc", "--tasks", "shapes_s",
        "--model_args", "pair=demo,engine=transformers,mode=small,mode=large", "--gen_kwargs", "temperature=-1",
        "--limt", "30", "--log_samples",
    )  # fmt: skip
    code, printed = command(tmp_path, tmp_path / "log", *line, name="lmms-eval-mai", errors=tmp_path / "errors").end()
    problems = [line.split(None, 2) for line in printed.splitlines() if "PROBLEM" in line]
    assert code == 1 and [(name, text) for _, name, text in problems] == [
        ("arguments", "mode is given more than once: lmms-eval uses the last value. Leave the others out."),
        ("gen_kwargs", "The decoding argument temperature=-1.0 is invalid: expected a number of at least 0. Correct it "
         "in --gen_kwargs, or in generation_kwargs of the task."),
        ("options", "--limt is not an option of lmms-eval. Did you mean --limit?"),
        ("options", "--log_samples needs --output_path: lmms-eval refuses it without."),
        ("model", "mai_casc is unknown to lmms-eval. Did you mean mai_cascade?"),
    ]  # fmt: skip


@pytest.mark.parametrize("program", [[], ["lmms-eval"], ["/usr/bin/lmms-eval", "eval"], ["python", "-m", "lmms_eval"]])
def test_a_whole_command_can_be_pasted(program: list[str]) -> None:
    found = read([*program, "--model", "mai_cascade", "--tasks=a,b", "--limit", "-1", "--model_args", "pair=demo"])
    assert (found.model, found.task_names(), found.model_args) == ("mai_cascade", ["a", "b"], "pair=demo")
    assert found.arguments[:2] == ("--model", "mai_cascade") and list(check_options(found)) == []


@pytest.mark.parametrize(
    ("arguments", "mark", "words"),
    [
        (["--limit", "ten"], "PROBLEM", "argument --limit: invalid float value: 'ten'"),
        (["pope_s"], "PROBLEM", "pope_s belongs to no option of lmms-eval."),
        (["--gpu", "L4"], "PROBLEM", "--gpu is not an option of lmms-eval. Did you mean --gpus"),
        (["--config", "a.yaml"], "skipped", "The configurations in --config a.yaml are not checked."),
        (["--model_a", "pair=demo"], "skipped", "A short form of --model_args is not checked."),
    ],
)
def test_options_that_are_wrong_or_not_checked_are_named(arguments: list[str], mark: str, words: str) -> None:
    (found,) = check_options(read(arguments))
    assert found.mark == mark and words in found.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "mai_casc"], "--gpus plans only mai_cascade, and --model is mai_casc. Did you mean mai_cascade?"),
        (["--model_arg", "mode=small", "--model", "vllm"], "--gpus plans only mai_cascade, and --model is vllm."),
        (["--model_arg", "mode=small"], "--model_arg is not read with --gpus. Write --model_args."),
        (["--model-args", "mode=small"], "--model-args is not an option of lmms-eval. Did you mean --model_args"),
    ],
)
def test_commands_whose_plan_would_mislead_are_refused(arguments: list[str], words: str) -> None:
    found = next(check_for_plan(read(arguments)))
    assert found.mark == "PROBLEM" and found.text.startswith(words)


def test_whole_command_can_be_planned() -> None:
    command = ["lmms-eval", "--model", "mai_cascade", "--tasks", "pope_s", "--limit", "4", "--model_args", "pair=demo"]
    assert list(check_for_plan(read(command))) == []


def test_texts_that_are_no_list_of_arguments_are_refused() -> None:
    config, finding = check_arguments("demo")
    assert config is None and "--model_args must be NAME=VALUE,NAME=VALUE" in finding.text
    assert check_decoding("temperature=0.5,seed=1", None).mark == "ok"
    unknown = check_decoding("temprature=1", None)
    assert unknown.mark == "PROBLEM" and "Did you mean temperature?" in unknown.text
    ignored = check_decoding("temperature=1,do_sample=False", None)
    assert (ignored.mark, ignored.text) == ("warning", "do_sample is ignored by mai_cascade.")
    twice = check_decoding("temperature=1", parse({"decoding": "official"}))
    assert twice.mark == "PROBLEM" and "decoding=official sets temperature=0.7" in twice.text


@pytest.mark.parametrize(
    ("name", "remedy"), [("batch_size", "Write small_batch_size or large_batch_size"), ("device", "small_devices")]
)
def test_arguments_that_lmms_eval_keeps_for_itself_are_refused_by_the_doctor_and_by_a_run(
    name: str, remedy: str
) -> None:
    model_args = f"pair=demo,engine=transformers,{name}=1"
    config, finding = check_arguments(model_args)
    assert config is None and f"{name}=1 in --model_args" in finding.text and remedy in finding.text
    with pytest.raises(ArgumentError) as error:
        MaiCascade.create_from_arg_string(model_args, {"batch_size": 1, "max_batch_size": None, "device": None})
    assert str(error.value) == finding.text
    assert check_arguments(f"pair=demo,engine=transformers,large_{name}=1")[1].mark == "ok"


def test_only_the_arguments_of_mai_cascade_are_checked() -> None:
    assert [command_line.is_ours(name) for name in (None, "mai_cascade", "mai-cascade", "vllm")] == [True] * 3 + [False]
    found = tasks.model("vllm")
    assert found.mark == "skipped" and "Only mai_cascade is checked" in found.text


# --- the hub ----------------------------------------------------------------------------------------------


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(404 if "POPE" in self.path else 200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a hub on this machine. It has all data sets but POPE."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield f"http://127.0.0.1:{found.server_port}"
        found.shutdown()


def test_hub_that_does_not_answer_is_used_no_more(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(constants, "ENDPOINT", server)
    assert hub.connect().absence is None and not constants.is_offline_mode()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert hub.connect().absence == "http://127.0.0.1:9 cannot be reached"
    assert constants.is_offline_mode() and os.environ["HF_HUB_OFFLINE"] == "1"
    assert hub.connect().absence == "HF_HUB_OFFLINE is set"


def test_tasks_are_checked_and_data_sets_of_a_tag_are_looked_for_on_the_hub_without_a_download(server: str) -> None:
    found = list(tasks.check(Command(tasks="mai_s,pope_r_s2,nope*"), Hub(server, None), mode="transfer"))
    unknown, two_stage = [one.text for one in found if one.name == "tasks" and one.mark == "PROBLEM"]
    assert unknown == "nope* matches no task of lmms-eval."
    assert two_stage.startswith("mode=transfer cannot run pope_r_s2: ") and two_stage.endswith("for example pope_r.")
    data = [one for one in found if one.name == "data"]
    by_task = {name: one for one in data for name in one.text.split(":")[0].split(", ")}
    names = {"chartqa_s", "infovqa_val_s", "mmbench_en_dev_s", "mmmu_val_s", "pope_s", "realworldqa_s"}
    assert names <= set(by_task)
    assert by_task["pope_s"].mark == "PROBLEM" and "(HTTP 404)" in by_task["pope_s"].text
    assert by_task["infovqa_val_s"].mark == "ok"
    assert "lmms-lab-encoder/DocVQA (InfographicVQA) is not in the cache; a run" in by_task["infovqa_val_s"].text


def test_missing_data_set_and_model_are_problems_without_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LMMS_EVAL_DATASETS_CACHE", str(tmp_path / "cache"))
    mark, text = tasks.data_set({"dataset_path": "lmms-lab-encoder/POPE"}, OFFLINE)
    assert mark == "PROBLEM"
    assert text.startswith("huggingface.co cannot be reached, and the data set lmms-lab-encoder/POPE is not in the cac")
    with pytest.raises(ArgumentError, match="cannot be reached, and Qwen/Qwen3-VL-2B-Instruct is not in the cache"):
        hub.check_model(parse({}).small, OFFLINE)
    hub.check_model(parse({"pair": "demo"}).small, OFFLINE)


def test_data_set_in_the_cache_is_found_where_the_library_finds_it(tmp_path: Path) -> None:
    made = tmp_path / "lmms-lab-encoder___doc_vqa" / "InfographicVQA" / "0.0.0" / "hash"
    made.mkdir(parents=True)
    (made / "dataset_info.json").write_text("{}")
    found = CachedDatasetModuleFactory("lmms-lab-encoder/DocVQA", cache_dir=str(tmp_path)).get_module()
    assert "cache" in found.module_path
    place = {"cache_dir": str(tmp_path)}
    assert hub.in_cache("lmms-lab-encoder/DocVQA", "InfographicVQA", place)
    assert hub.in_cache("lmms-lab-encoder/DocVQA", None, place)
    assert not hub.in_cache("lmms-lab-encoder/DocVQA", "DocVQA", place)
    assert not hub.in_cache("lmms-lab-encoder/POPE", None, place)


@pytest.mark.slow
def test_without_network_the_report_is_complete_and_has_no_noise(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    line = ["doctor", "--model", "mai_cascade", "--tasks", "pope_s"]
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lmms-eval-mai"), *line],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    problems = [line.split()[1] for line in done.stdout.splitlines() if "PROBLEM" in line]
    assert done.returncode == 1 and problems == ["data", "small", "large"]
    assert "retr" not in done.stderr.lower()
