"""Attention weights in the journal: a call is read as it was written, and its request decides whether it is reused."""

import asyncio
import dataclasses
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from lmms_eval_mai.contract import AttentionRequest, Call, CallKey, Message, Prompt, Sampling, TokenWeights
from lmms_eval_mai.run.journal.journal import Journal
from lmms_eval_mai.run.journal.journaled_engine import prompt_digest

KEY = CallKey("pope_s", 0, 0, "large", "score")
PROMPT = Prompt((Message("user", ("Is it red?",)),), KEY)
PROBABILITIES = st.floats(0, 1, allow_subnormal=True)


@settings(max_examples=20, deadline=None)
@given(
    tokens=st.lists(st.text(st.characters(), max_size=3), max_size=5).map(tuple),
    weights=st.lists(st.lists(PROBABILITIES, max_size=5).map(tuple), max_size=3).map(tuple),
)
def test_call_with_attention_is_read_from_the_journal_as_it_was_written(
    tokens: tuple[str, ...], weights: tuple[tuple[float, ...], ...]
) -> None:
    call = Call(KEY, "Yes", "length", 9, 0, 1, 0.0, 0.1, 0.2, attention=TokenWeights(tokens, weights))
    with TemporaryDirectory() as folder:
        journal = Journal(Path(folder), {"mode": "cascade"}, ["pope_s"])
        asyncio.run(journal.add_call(call, "digest", []))
        journal.close()
        journal = Journal(Path(folder), {"mode": "cascade"}, ["pope_s"])
        assert journal.find(KEY, "digest") == call
        journal.close()


def test_request_without_attention_has_the_digest_of_older_journals() -> None:
    assert prompt_digest(PROMPT, Sampling(max_tokens=16)) == "f3bf8743eb02d7477a506440291d2381"


def test_requests_for_other_layers_or_another_text_have_other_digests() -> None:
    requests = (
        None,
        AttentionRequest((1,)),
        AttentionRequest((2,)),
        AttentionRequest((1,), ""),
        AttentionRequest((1,), "It"),
    )
    prompts = [dataclasses.replace(PROMPT, attention=request) for request in requests]
    assert len({prompt_digest(prompt, Sampling(max_tokens=1)) for prompt in prompts}) == len(requests)
