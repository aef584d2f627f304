"""The call store: what a call is, and lines that are cancelled, damaged, or written when the store is closed."""

import asyncio
import dataclasses
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image as PilImage
from support.logs import logged

from lmms_eval_mai import contract
from lmms_eval_mai.contract import CALL, AttentionRequest, Call, CallKey, Image, Message, Prompt, Sampling, TokenWeights
from lmms_eval_mai.errors import StoreError
from lmms_eval_mai.run.store import Store

SAMPLING = Sampling(max_tokens=1)


def key(doc_id: int = 0, **changes: Any) -> CallKey:
    return dataclasses.replace(CallKey("pope_s", doc_id, 0, "small", "simple"), **changes)


def prompt(doc_id: int = 0, image: str = "a", text: str = "Is it red?", **changes: Any) -> Prompt:
    picture = Image(PilImage.new("RGB", (8, 8)), image)
    return Prompt((Message("user", (picture, text)),), key(doc_id, **changes))


def call(doc_id: int = 0, **fields: Any) -> Call:
    return Call("Yes \u2028", "stop", 9, 0, 1, 0.0, 0.1, 0.2, key=key(doc_id), **fields)


def opened(folder: Path, run: str = "", shares_calls: bool = True) -> Store:
    store = Store(folder / "x", shares_calls=shares_calls)
    store.run_name, store.models = run, {"small": "s", "large": "l"}
    return store


def written(folder: Path, *calls: tuple[Prompt, Call], run: str = "", sampling: Sampling = SAMPLING) -> Path:
    """Write calls in an earlier process. Returns the file."""

    async def write() -> None:
        store = opened(folder, run)
        for asked, answer in calls:
            await store.add(asked, sampling, answer)
        store.close()

    asyncio.run(write())
    return folder / "x-0of1.jsonl"


def found(store: Store, asked: Prompt, sampling: Sampling = SAMPLING) -> Call | None:
    return asyncio.run(store.find(asked, sampling))


def test_a_call_is_read_as_it_was_written(tmp_path: Path) -> None:
    weights = TokenWeights(("a", "\u2028", ""), (0.1, 1 / 3, 5e-324))
    full = call(answer_logprob=-0.1, started_at=1e9 + 0.3, image_tokens=4, attention=weights)
    file = written(tmp_path, (prompt(), full), (prompt(1), call(1)))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600  # only the user can read it
    store = opened(tmp_path)
    assert (found(store, prompt()), found(store, prompt(1)), found(store, prompt(2))) == (full, call(1), None)
    store.close()
    of_an_earlier_version = CALL.dump_python(full, mode="json") | {"target_calls": 2}
    assert CALL.validate_python(of_an_earlier_version) == full


def test_another_model_prompt_image_decoding_name_or_document_is_another_call(tmp_path: Path) -> None:
    asked = prompt()
    requests = (AttentionRequest(1, "Is"), AttentionRequest(2, "Is"), AttentionRequest(1, "It"))
    other = [dataclasses.replace(asked, attention=request) for request in requests]
    other += [dataclasses.replace(asked, logprobs=True), prompt(image="b"), prompt(text="Is it?"), prompt(1)]
    other += [prompt(repeat=1), prompt(task="pope_e"), prompt(prompt="think"), prompt(side="large")]
    native, other_native = prompt(prompt="native"), prompt(1, prompt="native")
    written(tmp_path, (asked, call()), (native, dataclasses.replace(call(thinking="red"), key=native.key)))
    store = opened(tmp_path)
    assert found(store, asked) and found(store, native) and not any(found(store, one) for one in (*other, other_native))
    assert found(store, asked, Sampling(max_tokens=2)) is None
    for decoding in ({"thinking_token_budget": 9}, {"repetition_detection": contract.Repetition()}):
        assert found(store, native, dataclasses.replace(SAMPLING, **decoding)) is None  # type: ignore[arg-type]
    store.models = {**store.models, "small": "of another checkpoint"}
    assert found(store, asked) is None
    store.close()


def test_only_a_greedy_call_of_another_run_is_shared(tmp_path: Path) -> None:
    sampled = Sampling(max_tokens=1, temperature=0.5)
    written(tmp_path, (prompt(), call()), run="first")
    written(tmp_path, (prompt(), call()), run="first", sampling=sampled)
    written(tmp_path, (prompt(text="of a run without a name"), call()))
    for run, shares, finds_sampled in (("first", False, True), ("second", True, False)):
        store = opened(tmp_path, run)
        same_document, other_document = found(store, prompt()), found(store, prompt(7))
        without_times = {"total_s": 0.0, "queued_s": None, "ttft_s": None} if shares else {}
        assert same_document == dataclasses.replace(call(), shared=shares, **without_times)
        # Two documents of one run with the same prompt have two calls, as in a run without a store.
        assert (other_document is not None) == shares and (other_document is None or other_document.key == key(7))
        assert (found(store, prompt(), sampled) is not None) == finds_sampled
        assert found(store, prompt(text="of a run without a name")) is None
        assert found(store, prompt(prompt="native")) is None
        store.close()


def test_runs_that_share_no_calls_find_only_their_own_calls_and_samples(tmp_path: Path) -> None:
    written(tmp_path, (prompt(), call()), run="first")
    store = opened(tmp_path, "first")
    asyncio.run(store.add_sample(("pope_s", 0, 0)))
    store.close()
    for run, is_its_own in (("first", True), ("second", False)):
        store = opened(tmp_path, run, shares_calls=False)
        assert found(store, prompt()) == (call() if is_its_own else None)
        assert (len(store.done([("pope_s", 0, 0), ("pope_s", 1, 0)])), store.earlier_calls) == (is_its_own, is_its_own)
        store.close()


def test_damaged_lines_are_left_out_with_a_warning_and_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    file = written(tmp_path, (prompt(), call()), (prompt(1), call(1)))
    first, second = file.read_bytes().splitlines(keepends=True)
    damaged = b'\x00{"key":\n7\n[]\n{"run": ""}\n'
    file.write_bytes(damaged + first + second[:-9])
    with logged("WARNING") as warnings:
        store = opened(tmp_path)
    assert (found(store, prompt()), found(store, prompt(1)), store.earlier_calls) == (call(), None, 1)
    store.close()
    assert file.read_bytes() == damaged + first and len(warnings) == 1 and "4 lines of" in warnings[0]


async def write_slowly(
    folder: Path, patch: pytest.MonkeyPatch, cancelled: tuple[int, ...] = (), error: OSError | None = None
) -> list[object]:
    """Add three calls: the first is written while the others wait. Then cancel some, and let the disk go on or fail."""
    writing, go_on = threading.Event(), threading.Event()

    def sync(file: int) -> None:
        writing.set()
        assert go_on.wait(10)
        if error is not None:
            raise error

    patch.setattr(os, "fsync", sync)
    store, lines = opened(folder), []
    for number in range(3):
        lines.append(asyncio.ensure_future(store.add(prompt(number), SAMPLING, call(number))))
        assert await asyncio.to_thread(writing.wait, 10)
    await asyncio.sleep(0)
    for number in cancelled:
        lines[number].cancel()
    await asyncio.sleep(0)  # the futures of the lines are cancelled now
    go_on.set()
    outcomes: list[object] = [*await asyncio.gather(*lines, return_exceptions=True)]
    patch.undo()
    if error is not None:
        outcomes += await asyncio.gather(store.add(prompt(3), SAMPLING, call(3)), return_exceptions=True)
    store.close()
    store.close()
    with pytest.raises(StoreError):
        await store.add(prompt(), SAMPLING, call())
    return outcomes


@pytest.mark.parametrize("cancelled", [(0, 1), (1, 2)])
def test_a_cancelled_line_cancels_no_other_line_and_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cancelled: tuple[int, ...]
) -> None:
    outcomes = asyncio.run(write_slowly(tmp_path, monkeypatch, cancelled))
    expected = [asyncio.CancelledError if number in cancelled else type(None) for number in range(3)]
    assert [type(one) for one in outcomes] == expected
    store = opened(tmp_path)
    assert [found(store, prompt(number)) for number in range(3)] == [call(number) for number in range(3)]
    store.close()


def test_lines_behind_a_failed_write_are_not_written_and_raise_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(28, "No space left on device")
    errors = asyncio.run(write_slowly(tmp_path, monkeypatch, error=full))
    assert [type(error) for error in errors] == [StoreError] * 4 and "No space left on device" in str(errors[3])
    assert (tmp_path / "x-0of1.jsonl").read_text().count("\n") == 1
