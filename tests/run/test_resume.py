"""A run that ends at any moment is resumed by the same command. `test_resume_on_vllm.py` kills real processes."""

import contextlib
import json
import resource
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.answers import quick
from support.evaluations import Evaluations, facts
from support.logs import logged

from lmms_eval_mai.contract import CallKey
from lmms_eval_mai.errors import StoreError
from lmms_eval_mai.method.methods import FULL_RT, MAI, steps_of

CALLS = 4 * (2 + 3 + 4)
"""Of 12 documents, in the three exits."""


@pytest.fixture
def world(tmp_path: Path) -> Evaluations:
    return Evaluations(tmp_path)


@pytest.mark.slow
@quick
@given(st.lists(st.floats(0, 1), min_size=1, max_size=3))
def test_a_run_whose_store_is_cut_off_anywhere_has_the_same_results_and_repeats_no_whole_call(
    cuts: list[float],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = Evaluations(Path(folder))
        undisturbed = facts(world.run())
        for cut in cuts:
            content = world.file.read_bytes()
            content = content[: int(cut * len(content))]
            world.file.write_bytes(content)  # what a kill at this moment leaves
            whole = content[: content.rfind(b"\n") + 1]
            world.made.clear()
            with logged("WARNING") as warnings:
                assert facts(world.run()) == undisturbed
            assert len(world.made) == CALLS - whole.count(b'"call"') and not warnings
            assert set(Counter(world.made).values()) <= {1}
            assert world.file.read_bytes().startswith(whole)


def test_after_a_completed_run_the_same_command_starts_a_new_run_unless_the_store_is_kept(world: Evaluations) -> None:
    for _ in range(2):
        world.run(complete=True)
        assert list(world.store.iterdir()) == []
    assert len(world.made) == 2 * CALLS
    keeping = Evaluations(world.store.parent, keep_store=True)
    for _ in range(2):
        keeping.run(complete=True)
    assert len(keeping.made) == CALLS and keeping.file.exists()


def test_a_completed_shorter_run_uses_the_store_of_a_longer_run_and_does_not_remove_it(world: Evaluations) -> None:
    world.run(range(9))
    made = len(world.made)
    world.run(range(3), complete=True)
    assert len(world.made) == made and world.file.exists()
    with logged() as messages:
        world.run(range(12), complete=True)
    assert len(world.made) == CALLS and list(world.store.iterdir()) == []
    assert any("resuming: 9 of 12 done (27 calls" in text for text in messages)


@pytest.mark.parametrize(
    ("arguments", "is_the_same"),
    [
        ({"think": "E"}, False),
        ({"method": "full_rt"}, False),
        ({"max_new_tokens": 9}, False),
        ({"infovqa_match": "anls"}, False),
        ({"method": "mai_confidence", "min_confidence": 0.7}, False),
        ({"transfer_answer": "keep"}, False),
        ({"task": "pope_e"}, False),
        ({"max_open_samples": 3, "call_timeout": 60, "engine_restarts": 5, "max_errors": 3}, True),
        ({"keep_store": True, "model_name": "x", "log_prompts": True}, True),
    ],
    ids=str,
)
def test_a_run_with_other_tasks_or_another_argument_that_can_change_an_answer_has_a_store_of_its_own(
    world: Evaluations, arguments: dict[str, object], is_the_same: bool
) -> None:
    world.run(range(3))
    task = str(arguments.get("task", "pope_s"))
    other = Evaluations(world.store.parent, **{name: value for name, value in arguments.items() if name != "task"})
    calls = [call for trace in other.run(range(3), task=task) for call in trace.calls]
    assert len(list(world.store.iterdir())) == 2 - is_the_same and (other.made == [] or not is_the_same)
    assert {call.shared for call in calls if call.key not in other.made} == {not is_the_same}


def test_a_method_with_changed_steps_is_another_run_which_finds_the_calls_of_the_killed_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(steps_of(MAI)))
    world = Evaluations(tmp_path, method=file, max_open_samples=1)
    world.run()
    content = world.file.read_bytes()
    world.file.write_bytes(content[: len(content) // 2])  # what a kill leaves
    lines = [json.loads(line) for line in world.file.read_bytes().split(b"\n")[:-1]]
    finished = {CallKey(*line["key"]) for line in lines if "key" in line}
    file.write_text(yaml.safe_dump(steps_of(FULL_RT)))
    changed, named = Evaluations(tmp_path, method=file), Evaluations(tmp_path, method="full_rt")
    with logged() as messages:
        calls = [call for trace in changed.run() for call in trace.calls]
        named.run()
    shared = {call.key for call in calls if call.shared}
    assert shared == {key for key in finished if key.prompt in ("think", "transfer")} and len(shared) > 3
    assert {*changed.made} == {call.key for call in calls} - shared and named.made == []
    assert len(list(world.store.iterdir())) == 3 and not any("resuming" in text for text in messages)


def test_a_run_of_another_model_has_a_store_of_its_own_without_the_secrets_of_the_engine(world: Evaluations) -> None:
    world.run(range(3))
    first = world.file
    world.identities["small"] = "another checkpoint, hf_token=hf_abc123"
    world.run(range(3))
    (second,) = set(world.store.iterdir()) - {first}
    assert "hf_abc123" not in second.name + second.read_text()


def test_one_rank_resumes_the_work_of_two_and_two_that_of_one(world: Evaluations) -> None:
    for rank in range(2):
        world.run(range(rank, 12, 2), rank=rank, world_size=2)
    assert len(world.made) == CALLS and len(list(world.store.iterdir())) == 2
    world.run(complete=True)
    assert len(world.made) == CALLS and list(world.store.iterdir()) == []
    world.run()
    for rank in range(2):  # the second rank completes last and removes the files of all
        world.run(range(rank, 12, 2), rank=rank, world_size=2, complete=rank == 1)
    assert len(world.made) == 2 * CALLS and list(world.store.iterdir()) == []


def test_two_runs_never_write_the_same_file_and_a_completed_one_does_not_remove_it_under_another_one(
    world: Evaluations,
) -> None:
    """`order` is called when a run has opened its store."""

    def run_the_same() -> range:
        with pytest.raises(StoreError, match="Another run with the same arguments is writing"):
            world.run()
        return range(12)

    first = world.evaluation()
    world.answer(first, order=run_the_same)
    first.stop()

    def complete_the_first() -> range:
        first.complete()
        assert world.file.exists()
        return range(12)

    world.run(complete=True, order=complete_the_first)
    assert len(world.made) == CALLS and list(world.store.iterdir()) == []


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond a number of bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_ends_the_run_with_one_sentence_and_the_run_can_be_resumed(
    world: Evaluations, capsys: pytest.CaptureFixture[str]
) -> None:
    """`capsys` keeps what is printed in memory: pytest's own file of it would be limited, too."""
    undisturbed = facts(world.run())
    world.file.write_bytes(world.file.read_bytes()[:3000])
    with largest_file(5000), pytest.raises(StoreError, match=r"cannot be written \(File too large\)"):
        world.run()
    assert world.file.stat().st_size == 5000
    assert facts(world.run()) == undisturbed


def test_a_folder_that_cannot_be_written_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for folder in ("/proc/store", tmp_path / "script.jsonl"):
        world = Evaluations(tmp_path, store=folder)
        with pytest.raises(StoreError, match="cannot be written"):
            world.evaluation()
