"""Model arguments, as lmms-eval passes them. Invalid ones are refused with a sentence."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lmms_eval.utils import simple_parse_args_string

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.paper.confidence import FirstCheck
from lmms_eval_mai.run import presets
from lmms_eval_mai.run.calibration import Calibration
from lmms_eval_mai.run.config import Config, parse
from lmms_eval_mai.run.readers import parse_literal


def parse_text(text: str) -> Config:
    """Parse a text as `--model_args` of the command line."""
    return parse(simple_parse_args_string(text))


def test_without_arguments_the_papers_pair_runs_as_a_cascade_on_vllm() -> None:
    config = parse({})
    assert (config.small.model, config.large.model) == ("Qwen/Qwen3-VL-2B-Instruct", "Qwen/Qwen3-VL-8B-Instruct")
    assert (config.small.engine, config.mode, config.think) == ("vllm", "cascade", "R")


def test_named_pair_sets_its_arguments_and_other_arguments_override_them() -> None:
    config = parse_text("pair=demo")
    for side in config.engines():
        assert (Path(side.model) / "config.json").is_file() and Path(side.model).name == side.side
    changed = parse_text("pair=demo,large=x/y,mode=transfer")
    assert (changed.small.model, changed.large.model, changed.mode) == (config.small.model, "x/y", "transfer")
    assert (config.max_new_tokens, parse_text("pair=demo,max_new_tokens=9").max_new_tokens) == (512, 9)
    assert parse_text("pair=qwen3vl-2b-8b") == parse({})
    # Example 3 of the paper transfers no answer.
    assert (config.transfer_answer, parse_text("transfer_answer=keep").transfer_answer) == ("cut", "keep")


def test_named_pairs_have_two_models_of_one_family_and_all_models_of_the_papers_tables() -> None:
    families = {"demo": "/", "internvl3_5": "OpenGVLab/InternVL3_5-", "qwen3vl": "Qwen/Qwen3-VL-"}
    names = set(presets.names())
    assert {name.split("-")[0] for name in names} == set(families) and len(names) == 8
    for name in names:
        config = parse_text(f"pair={name}")
        family, *sizes = name.split("-")
        for side, size in zip(config.engines(), sizes, strict=False):
            assert side.model.startswith(families[family] + size.upper())
    models = {model for name in names for model in presets.models(name)}
    assert {f"Qwen/Qwen3-VL-{size}-Instruct" for size in ("2B", "4B", "8B")} <= models  # Tables 5 and 6
    sizes = ["1B", "2B", "4B", "8B", "14B"]  # Tables 13 and 14
    assert {f"OpenGVLab/InternVL3_5-{size}-HF" for size in sizes} <= models


def test_pair_may_be_a_yaml_file_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("small: ./a\nlarge: org/b\nmax_new_tokens: 64\nlarge_limit_mm_per_prompt: {image: 2}\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text("{}")
    config = parse_text(f"pair={file},max_new_tokens=32")
    assert (config.small.model, config.large.model) == (str(tmp_path / "a"), "org/b")
    assert config.max_new_tokens == 32 and config.large.arguments == {"limit_mm_per_prompt": {"image": 2}}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("small: ./a\nlage: ./b", r"mine.yaml has no 'large' \(it has: small, lage\)"),
        ("small: [x]\nlarge: y", "'small' in .*mine.yaml must be the name or the path of a model"),
        ("small: ./no\nlarge: ./no", "The checkpoint .*/no of pair=.*mine.yaml"),
        ("a: [", "cannot be read"),
        ("- 1", "must be a mapping of model arguments"),
        (None, "there is no such file"),
    ],
)
def test_pair_file_that_cannot_be_used_is_refused_with_the_reason(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ArgumentError, match=words):
        parse_text(f"pair={file}")


def test_the_command_lists_the_pairs() -> None:
    shown = subprocess.run(
        [str(Path(sys.executable).parent / "lmms-eval-mai"), "pairs"], capture_output=True, text=True
    )
    lines = shown.stdout.splitlines()
    assert [line.split()[0] for line in lines if not line.startswith(" ")] == presets.names()
    assert "Qwen/Qwen3-VL-2B-Instruct + Qwen/Qwen3-VL-8B-Instruct (default)" in shown.stdout
    assert "./demo/small + ./demo/large" in shown.stdout
    assert lines[-1].strip() == "The paper measures reasoning transfer with this pair (Table 8), but not the cascade."


def test_scripted_engines_need_scripts_of_their_own_beside_a_pair() -> None:
    arguments = {"pair": "demo", "engine": "scripted", "small": "a.jsonl"}
    with pytest.raises(ArgumentError, match=r"names checkpoints, .* give small=\.\.\. and large=\.\.\."):
        parse(arguments)
    assert parse({**arguments, "large": "b.jsonl"}).large.model == "b.jsonl"


def test_argument_goes_to_both_engines_and_a_prefixed_argument_overrides_it() -> None:
    config = parse_text("max_model_len=4096,small_max_model_len=8192,large_enforce_eager=True")
    assert config.small.arguments == {"max_model_len": 8192}
    assert config.large.arguments == {"max_model_len": 4096, "enforce_eager": True}
    swapped = parse_text("small_max_model_len=8192,max_model_len=4096")
    assert swapped.small.arguments == {"max_model_len": 8192}


def test_each_side_may_have_another_engine_and_a_mode_of_one_model_needs_only_that_model() -> None:
    config = parse_text("small_engine=scripted,small=a.jsonl,large=b")
    assert (config.small.engine, config.large.engine) == ("scripted", "vllm")
    config = parse_text("engine=scripted,mode=small,small=a.jsonl")
    assert [side.side for side in config.engines()] == ["small"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"image": 8}', {"image": 8}),
        ("{'image': 8}", {"image": 8}),
        ("none", None),
        ('"1,2"', "1,2"),
        ("bf16", "bf16"),
    ],
)
def test_engine_arguments_that_lmms_eval_leaves_as_text_are_decoded(text: str, value: Any) -> None:
    assert parse_literal(text, "name") == value
    assert parse_text(f"small_mm_processor_kwargs={text}").small.arguments == {"mm_processor_kwargs": value}


def test_sparse_transfer_has_the_papers_defaults_and_asks_one_engine_for_attention() -> None:
    assert parse({}).transfer == "full" and not any(engine.attention for engine in parse({}).engines())
    config = parse_text("transfer=sparse")
    assert (config.sparse_delta, config.sparse_layer, config.sparse_from) == (0.8, 12, "large")
    assert (config.sparse_order, config.sparse_boundary) == ("original", "least")
    assert (config.small.attention, config.large.attention) == (False, True)
    config = parse_text("transfer=sparse,sparse_from=small,sparse_delta=1,sparse_layer=4.0")
    assert (config.small.attention, config.large.attention) == (True, False)
    assert (config.sparse_delta, config.sparse_layer) == (1, 4) and isinstance(config.sparse_layer, int)


def test_layer_in_the_file_of_a_pair_has_no_effect_on_full_transfer() -> None:
    assert parse_text("pair=demo").transfer == "full"
    assert parse_text("pair=demo,transfer=sparse").sparse_layer == 0.33
    assert parse_text("pair=demo,transfer=sparse,sparse_layer=5").sparse_layer == 5


def test_threshold_in_the_file_of_a_pair_has_no_effect_on_agreement() -> None:
    assert parse_text("pair=demo").first_check().verify == "agreement"
    check = parse_text("pair=demo,verify=confidence").first_check()
    assert check.verify == "confidence" and check.threshold("shapes") == check.threshold("any") == 0.82
    assert parse_text("pair=demo,verify=both,min_confidence=0.5").first_check().threshold("shapes") == 0.5
    assert parse_text("pair=demo,verify=both").min_confidence is None  # the threshold is that of another rule


def test_first_check_in_the_file_of_a_pair_has_no_effect_on_other_modes(tmp_path: Path) -> None:
    file = tmp_path / "pair.yaml"
    file.write_text("small: org/a\nlarge: org/b\nverify: confidence\nmin_confidence: 0.8\n")
    assert parse_text(f"pair={file}").first_check() == FirstCheck("confidence", 0.8)
    for mode in ("small", "large", "transfer"):
        config = parse_text(f"pair={file},mode={mode}")
        assert (config.verify, config.min_confidence) == ("agreement", None)


@pytest.mark.parametrize(
    "change", [{"thresholds": None}, {"documents": 5}, {"pooled": 5}, {"thresholds": {"pope": "x"}}, {"verify": "no"}]
)
def test_damaged_file_of_thresholds_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    file = tmp_path / "file.json"
    Calibration("confidence", 0.9, {"pope": 0.9}, "", "a", "b", {"pope": 1}, ()).write(file)
    assert parse_text(f"pair=demo,verify=confidence,min_confidence={file}").first_check().threshold("pope") == 0.9
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(ArgumentError, match="or a file that lmms-eval-mai calibrate has written"):
        parse_text(f"pair=demo,verify=confidence,min_confidence={file}")


def test_journal_is_on_off_or_a_folder() -> None:
    assert [parse_text(f"journal={text}").journal for text in ("on", "true", "off", "false", "none")] == [
        None, None, "off", "off", "off",
    ]  # fmt: skip
    assert parse_text("journal=/tmp/j").journal == "/tmp/j" and parse({}).journal is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mode=casacde", ["cascade, transfer, small, large"]),
        ("pair=dmo", ["demo, internvl3_5-1b-8b", "qwen3vl-4b-8b, give the path", "Did you mean demo?"]),
        ("pair=demo,engine=scripted", ["engine=scripted", "small=..."]),
        ("think=S", ["R, E"]),
        ("large_engine=sglang", ["vllm, transformers, openai, scripted"]),
        ("max_open_samples=0", ["at least 1"]),
        ("max_new_tokens=nan", []),
        ("max_new_tokens=1.5", ["whole number"]),
        ("max_errors=-1", ["at least 0"]),
        ("max_errors=1.5", ["a number of samples, or a share below 1"]),
        ("max_errors=many", []),
        ("call_timeout=0", []),
        ("engine_restarts=-1", []),
        ("transfer_answer=drop", ["cut, keep"]),
        ("on_overflow=drop", ["truncate, error"]),
        ("transfer=sparse,sparse_delta=1.01", ["above 0 and at most 1"]),
        ("transfer=sparse,sparse_delta=nan", []),
        ("transfer=sparse,sparse_layer=2.5", ["(1, 2, ...) or a share of the layers"]),
        ("transfer=sparse,sparse_layer=0", []),
        ("transfer=sparse,sparse_from=both", ["large, small"]),
        ("pair=demo,transfer=full,sparse_layer=2,sparse_from=small", ["leave sparse_layer and sparse_from out"]),
        ("transfer=sparse,mode=large", ["mode=cascade or mode=transfer"]),
        ("journal=[x", ["journal is neither JSON nor a Python literal"]),
        ("anls_threshold=2", ["at most 1"]),
        ("chartqa_match=fuzzy", ["exact, relaxed"]),
        ("verify=confidence,min_confidence=0", ["above 0 and at most 1"]),
        ("verify=confidence,min_confidence=none.json", ["nor a file that exists here"]),
        ("min_confidence=0.7", ["has no effect with verify=agreement"]),
        ("mode=large,verify=both", ["verify=both has no effect with mode=large"]),
        ("engine=scripted,small=a.jsonl", ["large=PATH"]),
        ("small=node-1:8000/v1", ["Give small=http://node-1:8000/v1."]),
        ("small_mm_processor_kwargs={max_pixels:5}", ["JSON"]),
    ],
)
def test_invalid_value_is_named_with_what_to_do(text: str, words: list[str]) -> None:
    with pytest.raises(ArgumentError) as error:
        parse_text(text)
    assert any(argument.split("=")[0] in str(error.value) for argument in text.split(","))
    assert all(word in str(error.value) for word in words), error.value


def test_unknown_argument_is_refused_with_the_nearest_known_one(tmp_path: Any) -> None:
    script = tmp_path / "a.jsonl"
    script.write_text("")
    for text, near in (
        ("max_open_sample=8", "max_open_samples"),
        ("time_scal=0", "time_scale"),
        ("zzz=1", "The arguments of mai_cascade: mode, think, "),
        ("zzz=1", "Of the scripted engine: slots, time_scale, "),
        ("pretrained=x", ""),
    ):
        with pytest.raises(ArgumentError) as error:
            parse_text(f"engine=scripted,small={script},large={script},{text}")
        assert text.split("=")[0] in str(error.value)
        assert near in str(error.value)
