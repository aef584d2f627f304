"""Model arguments, as lmms-eval passes them."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from lmms_eval_mai.engines.arguments import parse_literal
from lmms_eval_mai.method.files import load
from lmms_eval_mai.method.methods import MAI, MAI_CONFIDENCE, METHODS, steps_of
from lmms_eval_mai.method.sparse import Sparse
from lmms_eval_mai.redaction import redacted
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.evaluation import sparse_of
from lmms_eval_mai.user_input import values_of


def parse_text(text: str) -> Config:
    """Parse a text as `--model_args` of the command line."""
    return parse(values_of("--model_args", text))


def test_named_pair_sets_its_arguments_and_other_arguments_override_them() -> None:
    config = parse_text("pair=demo")
    for side in config.engines():
        assert (Path(side.model) / "config.json").is_file() and Path(side.model).name == side.side
    changed = parse_text("pair=demo,large=x/y,method=full_rt")
    assert (changed.small.model, changed.large.model, changed.method.name) == (config.small.model, "x/y", "full_rt")
    assert (config.max_new_tokens, parse_text("pair=demo,max_new_tokens=9").max_new_tokens) == (512, 9)
    assert parse_text("pair=qwen3vl-2b-8b") == parse({})
    assert (parse({}).method, parse({}).think, parse({}).small.engine) == (MAI, "R", "vllm")
    rounded = parse({"max_open_samples": 8.0, "engine_restarts": 0.0})  # lmms-eval may read a float
    assert (rounded.max_open_samples, rounded.engine_restarts) == (8, 0)


def test_pair_may_be_a_yaml_file_of_the_user_whose_values_are_read_as_those_of_the_command(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    models = "small: ./a\nlarge: org/b\nengine: transformers\nrevision: '007'\nmodel_name: Köln\nmax_new_tokens: 64\n"
    given = "max_errors: 1e-1\nmax_open_samples: '8'\nthink: native\nnative_gen_kwargs: {temperature: 5.e-1}\n"
    file.write_text(f"{models}{given}chat_template_kwargs: {{date: 2026-11-28}}", "utf-8")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    config = parse_text(f"pair={file},max_new_tokens=32")
    assert (config.small.model, config.large.model, config.max_new_tokens) == (str(tmp_path / "a"), "org/b", 32)
    assert (config.max_errors, config.max_open_samples, config.model_name) == (0.1, 8, "Köln")
    assert config.native_gen_kwargs == {"temperature": 0.5}
    assert config.large.arguments == {"revision": "007", "chat_template_kwargs": {"date": "2026-11-28"}}


def test_engine_arguments_of_a_pair_file_are_for_the_kind_of_engine_that_the_file_has(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("engine: scripted\nsmall: ./a.jsonl\nlarge: ./b.jsonl\ntime_scale: 0\n")
    small, large = parse_text(f"pair={file},large=http://b/v1,large_concurrency=3").engines()
    assert (small.engine, small.model, small.arguments) == ("scripted", str(tmp_path / "a.jsonl"), {"time_scale": 0})
    assert (large.engine, large.arguments) == ("openai", {"concurrency": 3})


def test_a_run_has_the_engines_that_its_method_asks() -> None:
    asked = {name: [engine.side for engine in parse_text(f"pair=demo,method={name}").engines()] for name in METHODS}
    alone = {"small": ["small"], "large": ["large"], "large_r": ["large"], "own_thinking": ["large"]}
    assert asked == {name: alone.get(name, ["small", "large"]) for name in METHODS}


def test_a_method_may_be_a_yaml_file_of_the_user_or_of_the_pair(tmp_path: Path) -> None:
    file, pair = tmp_path / "mine.yaml", tmp_path / "pair.yaml"
    file.write_text(yaml.safe_dump(steps_of(MAI_CONFIDENCE)))
    pair.write_text("small: org/a\nlarge: org/b\nmethod: ./mine.yaml\n")
    for config in (parse_text(f"pair=demo,method={file}"), parse({"pair": pair}), parse({"method": file})):
        assert (config.method.name, config.method.steps) == ("mine", MAI_CONFIDENCE.steps)
        assert config.settings.method == config.method and config.thresholds.of("shapes") == 0.9
    assert parse({"method": config.method}).method == config.method


@pytest.mark.parametrize("name", METHODS)
def test_a_file_may_have_the_name_of_a_method_and_its_steps(tmp_path: Path, name: str) -> None:
    (file := tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(steps_of(METHODS[name])))
    assert load(file) == METHODS[name]


def test_settings_have_the_arguments_that_change_an_answer_of_the_method_wherever_they_were_given(
    tmp_path: Path,
) -> None:
    file = tmp_path / "mine.yaml"
    given = "think: E\ninfovqa_match: anls\nanls_threshold: 0.5\nsparse_layer: 2\n"
    file.write_text(f"small: a\nlarge: http://me:secret@h/v1\n{given}")
    text = f"pair={file},max_new_tokens=64,transfer_answer=cut,think=E,max_errors=3,chartqa_match=exact"
    settings = parse_text(text).settings
    assert (settings.small, settings.large) == ("a", "http://<redacted>@h/v1")
    expected = {"think": "E", "anls_threshold": 0.5, "infovqa_match": "anls"}
    expected |= {"max_new_tokens": 64, "transfer_answer": "cut"}
    assert settings.options == expected
    assert parse_text(f"{text},method=small").settings.options == {"max_new_tokens": 64}
    assert parse_text(f"{text},method=small").settings.large == ""


def test_argument_goes_to_both_engines_and_a_prefixed_argument_overrides_it() -> None:
    for text in ("max_model_len=4096,small_max_model_len=8192", "small_max_model_len=8192,max_model_len=4096"):
        config = parse_text(f"{text},large_enforce_eager=True")
        assert config.small.arguments == {"max_model_len": 8192}
        assert config.large.arguments == {"max_model_len": 4096, "enforce_eager": True}
    mixed = parse_text("small_engine=scripted,small=a.jsonl,large=http://h:1/v1")
    assert [(side.side, side.engine) for side in mixed.engines()] == [("small", "scripted"), ("large", "openai")]
    assert [side.side for side in parse_text("engine=scripted,method=small,small=a.jsonl").engines()] == ["small"]


@pytest.mark.parametrize(
    ("text", "value"),
    [('{"image": 8}', {"image": 8}), ("{'a': 8}", {"a": 8}), ("none", None), ('"1,2"', "1,2"), ("bf16", "bf16")],
)
def test_engine_arguments_that_lmms_eval_leaves_as_text_are_decoded(text: str, value: Any) -> None:
    assert parse_literal(text) == value
    assert parse_text(f"small_mm_processor_kwargs={text}").small.arguments == {"mm_processor_kwargs": value}


def test_store_is_on_off_or_a_folder(tmp_path: Path) -> None:
    texts = {"on": None, "true": None, "off": "off", "false": "off", "none": "off", "/tmp/s": "/tmp/s"}
    assert {text: parse_text(f"store={text}").store for text in texts} == texts
    assert parse({"store": tmp_path}).store == str(tmp_path) and parse({}).store is None


@pytest.mark.parametrize(("given", "layer"), [("4", 4), ("0.01", 1), ("0.33", 1), ("0.4", 2), ("0.99", 4), ("4.0", 4)])
def test_layer_is_a_number_or_a_share_of_the_large_models_layers(tmp_path: Path, given: str, layer: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 4}))
    text = f"transfer=sparse,engine=transformers,sparse_layer={given},sparse_delta=1,large={tmp_path}"
    config = parse_text(text)
    assert [engine.attention for engine in config.engines()] == [False, True]
    assert sparse_of(config) == Sparse(1, layer)


def test_sparse_transfer_has_the_papers_defaults() -> None:
    config = parse_text("transfer=sparse,engine=scripted,small=a,large=b")
    assert (config.sparse_delta, config.sparse_layer) == (0.8, 12)
    assert sparse_of(parse_text("pair=demo")) is None  # the pair's file has a layer, which has no effect
    assert parse_text("pair=demo,transfer=sparse").sparse_layer == 0.33


def test_a_method_has_its_own_threshold_in_the_file_of_a_pair() -> None:
    for name, threshold in (("mai_confidence", 0.731), ("own_thinking", 0.818), ("mai_confidence_direct", 0.9)):
        thresholds = parse_text(f"pair=demo,method={name}").thresholds
        assert thresholds.of("shapes") == thresholds.of("any") == threshold
    assert parse_text("pair=demo,method=own_thinking,min_confidence=0.5").thresholds.of("shapes") == 0.5


def test_no_secret_reaches_a_message() -> None:
    given = {"OPENAI_API_KEY": 1, "hf_token": "a", "default_headers": {}, "nested": {"api_key": "b"}, "tokenizer": "t"}
    hidden = "<redacted>"
    assert redacted({**given, "max_num_batched_tokens": 8, "eos_token_id": 3}) == {
        **{"OPENAI_API_KEY": hidden, "hf_token": hidden, "default_headers": hidden, "nested": {"api_key": hidden}},
        **{"tokenizer": "t", "max_num_batched_tokens": 8, "eos_token_id": 3},
    }
