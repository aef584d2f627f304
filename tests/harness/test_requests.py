"""Requests of lmms-eval that become samples."""

from types import SimpleNamespace

import pytest

from lmms_eval_mai.harness.requests import open_sample
from lmms_eval_mai.run.config import parse


@pytest.mark.parametrize(
    ("written", "read"), [("half \ud83d", "half \ufffd"), ("\ud83d\ude00", "\U0001f600"), ("漢字 é", "漢字 é")]
)
def test_lone_surrogates_are_replaced(written: str, read: str) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": written}]}]
    request = SimpleNamespace(args=("", lambda doc: messages, {}, 0, "other_task", "test"), metadata={})
    sample = open_sample(request, 0, {"other_task": {"test": [{"question": written}]}}, parse({}))
    assert sample.own_prompt[0].content == (read,)
    read.encode()
