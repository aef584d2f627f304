"""The fingerprint of a run: everything that can change an answer, and nothing else."""

from pathlib import Path

import pytest

from lmms_eval_mai.engines.build import build
from lmms_eval_mai.engines.vllm.errors import start_error
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.redaction import redacted
from lmms_eval_mai.run import fingerprint
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.fingerprint import Fingerprint


def fingerprint_of(checkpoint: Path, **arguments: object) -> Fingerprint:
    config = parse({"small": str(checkpoint), "large": str(checkpoint), **arguments})
    identities = {side.side: build(side, config.other(side)).identity() for side in config.engines()}
    return fingerprint.of_run(config, identities, {"pope_s": {"temperature": 0}})


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").write_bytes(bytes(20_000_000))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "transfer"},
        {"think": "E"},
        {"max_new_tokens": 64},
        {"on_overflow": "error"},
        {"transfer_answer": "keep"},
        {"anls_threshold": 0.8},
        {"dtype": "float32"},
        {"large_revision": "v2"},
        {"decoding": "official", "official_decoding": {"temperature": 0.7, "seed": 1}},
    ],
)
def test_argument_that_can_change_an_answer_changes_the_fingerprint(
    checkpoint: Path, arguments: dict[str, object]
) -> None:
    before, after = fingerprint_of(checkpoint), fingerprint_of(checkpoint, **arguments)
    assert fingerprint.digest(before) != fingerprint.digest(after)
    assert 1 <= len(fingerprint.differences(before, after)) <= 2
    assert before["templates"] == prompts.digest()


def test_arguments_of_sparse_transfer_change_only_its_fingerprint(checkpoint: Path) -> None:
    full, before = fingerprint_of(checkpoint, transfer="full"), fingerprint_of(checkpoint, transfer="sparse")
    assert full == fingerprint_of(checkpoint) and not any("sparse" in text or text == "transfer" for text in full)
    for argument, changed in (
        ("delta", 0.5),
        ("layer", 11),
        ("from", "small"),
        ("order", "weight"),
        ("boundary", "most"),
    ):
        after = fingerprint_of(checkpoint, transfer="sparse", **{f"sparse_{argument}": changed})
        (difference,) = fingerprint.differences(before, after)
        assert difference.startswith(f"sparse_{argument} was ") and difference.endswith(f" and is {changed}")


def test_argument_for_speed_or_place_does_not_change_the_fingerprint(checkpoint: Path) -> None:
    place = {"gpu_memory_utilization": 0.4, "small_devices": 1, "max_num_seqs": 8, "enforce_eager": True}
    speed = {"max_open_samples": 8, "call_timeout": 60, "engine_restarts": 5, "max_errors": 3, "model_name": "x"}
    assert fingerprint_of(checkpoint) == fingerprint_of(checkpoint, **place, **speed)


@pytest.mark.parametrize(
    ("file", "offset"), [("config.json", 0), ("chat_template.jinja", 3), ("model.safetensors", 10_640_000)]
)
def test_changed_checkpoint_at_the_same_path_changes_the_fingerprint(checkpoint: Path, file: str, offset: int) -> None:
    before = fingerprint_of(checkpoint)
    data = bytearray((checkpoint / file).read_bytes())
    data[offset] ^= 1
    if file.endswith("safetensors"):  # training changes all weights, not one byte of 20 MB
        data[:] = bytes(byte ^ 1 for byte in data)
    (checkpoint / file).write_bytes(data)
    differ = fingerprint.differences(before, fingerprint_of(checkpoint))
    assert [line.split(" was ")[0] for line in differ] == ["large checkpoint", "small checkpoint"]


def test_only_the_arguments_that_differ_are_named() -> None:
    previous = {"mode": "cascade", "small arguments": '{"dtype": "auto", "max_model_len": 2048, "seed": 0}'}
    current = {"mode": "cascade", "small arguments": '{"dtype": "auto", "max_model_len": 4096}'}
    assert fingerprint.differences(previous, current) == [
        "small arguments max_model_len was 2048 and is 4096",
        "small arguments seed was 0 and is not given",
    ]


def test_no_secret_reaches_a_fingerprint_or_a_message(checkpoint: Path) -> None:
    secret = "hf_abc123"
    config = parse({"small": str(checkpoint), "hf_token": secret, "hf_overrides": f'{{"api_key": "{secret}"}}'})
    assert secret not in str(fingerprint_of(checkpoint, hf_token=secret, hf_overrides=f'{{"api_key": "{secret}"}}'))
    assert secret not in str(start_error(config.small, ValueError("no such dtype")))
    given = {"OPENAI_API_KEY": 1, "default_headers": {}, "max_num_batched_tokens": 8, "eos_token_id": 3, "dtype": "x"}
    assert redacted(given) == {
        **given,
        "OPENAI_API_KEY": "<redacted>",
        "default_headers": "<redacted>",
    }
