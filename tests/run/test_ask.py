"""The Python API `Cascade`, with scripted answers."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lmms_eval_mai import ArgumentError, Cascade, EngineCrashed, EngineStartError, MissingAnswer, UnreadableImage
from lmms_eval_mai.paper.prompts import instruction

QUESTION = "Is there a dog in the image?"
EXITS = ("agree_short", "agree_think", "transfer")


def short(number: int, text: str = "[[yes]]", **more: Any) -> dict[str, Any]:
    """Return the short answer to a question."""
    return {"task": "ask", "doc_id": number, "stage": "short", "text": text, **more}


@pytest.fixture
def scripts(write_script: Callable[[str, Iterable[Any]], Path]) -> dict[str, Any]:
    """The answers of both models to 12 questions; question i has exit EXITS[i % 3]."""
    small, large = [], []
    for number in range(12):
        exit = EXITS[number % 3]
        small.append(short(number, "[[Yes]]" if exit == "agree_short" else "[[No]]"))
        thought = "yes" if exit == "agree_think" else "no"
        small.append(short(number, f"A tail. [[{thought}]]", stage="think"))
        large.append(short(number, "[[Yes]]"))
        large.append(short(number, f"It is {number}. [[Maybe]]", stage="transfer"))
    return {"engine": "scripted", "small": write_script("small", small), "large": write_script("large", large)}


@pytest.fixture
def image() -> Image.Image:
    return Image.new("RGB", (64, 48), "red")


def check(number: int, trace: Any) -> None:
    assert trace.exit == EXITS[number % 3]
    assert trace.text == ("Maybe" if trace.exit == "transfer" else "Yes")
    stages = [f"{call.key.side} {call.key.stage}" for call in trace.calls]
    assert stages == ["small short", "large short", "small think", "large transfer"][: 2 + number % 3]


def test_questions_are_awaited_one_by_one_and_many_at_once(scripts: dict[str, Any], image: Image.Image) -> None:
    async def ask() -> None:
        async with Cascade(**scripts, max_open_samples=3) as mai:
            check(0, await mai.ask(image, QUESTION))
            traces = await asyncio.gather(*(mai.ask(image, QUESTION) for _ in range(11)))
        for number, trace in enumerate(traces, start=1):
            check(number, trace)

    asyncio.run(ask())


def test_blocking_form_answers_also_while_an_event_loop_runs_in_the_thread(
    scripts: dict[str, Any], image: Image.Image
) -> None:
    def ask() -> None:
        with Cascade(**scripts) as mai:
            check(0, mai.ask_blocking(image, QUESTION))
            for number, future in enumerate([mai.submit(image, QUESTION) for _ in range(11)], start=1):
                check(number, future.result())

    async def as_in_a_notebook() -> None:
        ask()

    ask()
    asyncio.run(as_in_a_notebook())


@pytest.mark.usefixtures("task_manager")  # the parser of options imports lmms-eval's tasks
def test_prompt_has_the_images_then_the_question_then_its_options_then_the_instruction(
    write_script: Any, tmp_path: Path
) -> None:
    script = write_script("large", [short(number, "[[B]]") for number in range(3)])
    one, two = Image.new("RGBA", (20, 10)), tmp_path / "two.png"
    Image.new("L", (30, 10)).save(two)
    with Cascade(engine="scripted", mode="large", large=script, log_prompts=True) as mai:
        questions = [([one, two], "Which?", ["red", "blue"]), (None, "Which?", None), (str(two), "Which?", None)]
        found = [mai.ask_blocking(*question).prompts[0] for question in questions]
    letter, word = instruction("S", "letter"), instruction("S", "word")
    assert found == [
        ({"role": "user", "content": ["<image 20x10>", "<image 30x10>", "Which?\nA. red\nB. blue\n", letter]},),
        ({"role": "user", "content": ["Which?\n", word]},),
        ({"role": "user", "content": ["<image 30x10>", "Which?\n", word]},),
    ]


@pytest.mark.usefixtures("task_manager")
def test_options_make_the_answer_a_letter_and_keep_their_value_although_the_list_is_changed(write_script: Any) -> None:
    texts = {"small": "[[B]]", "large": "[[B. blue]]"}
    given = {side: write_script(side, [short(n, text) for n in range(3)]) for side, text in texts.items()}
    with Cascade(engine="scripted", max_open_samples=1, log_prompts=True, **given) as mai:
        images, options = [Image.new("RGB", (9, 8))], ["red", "blue"]
        futures = [mai.submit(images, "Half \ud83d?", options) for _ in range(2)]
        futures.append(mai.submit(images, "Half \ud83d?", (text for text in ("red", "blue"))))  # type: ignore[arg-type]
        images.clear()
        options[:] = ["wrong", "wrong"]
        for trace in (future.result() for future in futures):
            assert (trace.exit, trace.verifications[0].small, trace.verifications[0].large) == ("agree_short", "B", "B")
            assert trace.prompts[0][0]["content"][:2] == ["<image 9x8>", "Half \ufffd?\nA. red\nB. blue\n"]


def test_error_of_one_question_fails_only_that_question(
    scripts: dict[str, Any], image: Image.Image, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG no image")

    async def ask() -> list[Any]:
        async with Cascade(**scripts) as mai:
            given = [image, tmp_path / "missing.png", broken, *[image] * 10, Image.new("RGB", (0, 9))]
            return await asyncio.gather(*(mai.ask(one, QUESTION) for one in given), return_exceptions=True)

    first, missing, unreadable, *others, unknown, empty = asyncio.run(ask())
    check(0, first)
    assert isinstance(missing, UnreadableImage) and "missing.png does not exist" in str(missing)
    assert isinstance(unreadable, UnreadableImage) and "broken.png cannot be read" in str(unreadable)
    for number, trace in enumerate(others, start=3):
        check(number, trace)
    assert isinstance(unknown, MissingAnswer) and "ask document 12" in str(unknown)
    assert isinstance(empty, UnreadableImage) and "a side of 0 pixels (0 x 9)" in str(empty)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, QUESTION), "An object of type int is not an image"),
        (([None], QUESTION), "An object of type NoneType is not an image"),
        ((None, " "), "is not a text, or it is empty"),
        ((None, QUESTION, "red"), "expected a list of texts"),
        ((None, QUESTION, {"red", "blue"}), "expected a list of texts"),  # without an order
        ((None, QUESTION, ["red"]), "options has 1 texts: expected 2 to 26, or None"),
    ],
)
def test_wrong_question_is_refused_at_once(scripts: dict[str, Any], arguments: Any, message: str) -> None:
    with Cascade(**scripts) as mai, pytest.raises(ArgumentError, match=re.escape(message)):
        mai.submit(*arguments)


def test_wrong_argument_is_refused_before_the_engines_start(scripts: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="temprature"):
        Cascade(**scripts, gen_kwargs={"temprature": 1})
    with pytest.raises(ArgumentError, match="expected a dictionary"):
        Cascade(**scripts, gen_kwargs="temperature=1")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="decoding=official sets temperature="):
        Cascade(pair="qwen3vl-2b-8b", decoding="official", gen_kwargs={"temperature": 0})


def test_engines_that_are_not_running_answer_nothing_until_they_are_started(
    scripts: dict[str, Any], image: Image.Image
) -> None:
    mai = Cascade(**scripts)
    with pytest.raises(EngineCrashed, match=r"engines of this Cascade are not running: ask inside .* or call start"):
        asyncio.run(mai.ask(image, QUESTION))
    for _ in range(2):  # it can be started again
        mai.start()
        mai.start()
        assert mai.ask_blocking(image, QUESTION).text
        mai.close()
        mai.close()
        with pytest.raises(EngineCrashed, match="are not running"):
            mai.ask_blocking(image, QUESTION)


def test_failed_start_raises_its_error_in_both_forms(tmp_path: Path) -> None:
    closed = {"small": "http://127.0.0.1:9/v1", "large": "http://127.0.0.1:9/v1", "retry_for": 0.1}

    async def enter() -> None:
        async with Cascade(**closed):
            raise AssertionError

    with pytest.raises(EngineStartError, match=r"127\.0\.0\.1:9"):
        asyncio.run(enter())
    with pytest.raises(EngineStartError, match=r"127\.0\.0\.1:9"):
        Cascade(**closed).start()


@pytest.mark.parametrize("seconds", [0, 0.3])
def test_cancelled_start_of_the_async_form_ends_and_leaves_nothing_running(seconds: float) -> None:
    """After 0 seconds the thread of the start may not have begun."""
    waiting = {"small": "http://127.0.0.1:9/v1", "large": "http://127.0.0.1:9/v1", "retry_for": 60}
    mai = Cascade(**waiting)

    async def enter() -> None:
        async with asyncio.timeout(seconds), mai:
            raise AssertionError

    async def enter_in_time() -> None:
        entering = asyncio.ensure_future(enter())
        await asyncio.wait([entering], timeout=50)
        assert entering.done()
        await entering

    with pytest.raises(TimeoutError):
        asyncio.run(enter_in_time())
    with pytest.raises(EngineCrashed, match="are not running"):
        mai.submit(None, QUESTION)


def test_questions_that_wait_are_cancelled_when_the_engines_stop(write_script: Any) -> None:
    script = write_script("large", [short(n, fault="hang") for n in range(6)])
    with Cascade(engine="scripted", mode="large", large=script, max_open_samples=2) as mai:
        futures = [mai.submit(None, QUESTION) for _ in range(6)]
        futures[0].cancel()
    assert all(future.cancelled() for future in futures)


def test_cancelled_question_leaves_its_place_to_the_next_one(write_script: Any) -> None:
    large = [short(0, fault="hang"), short(1)]

    async def ask() -> str:
        given = {"mode": "large", "large": write_script("large", large), "max_open_samples": 1}
        async with Cascade(engine="scripted", **given) as mai:
            first = asyncio.ensure_future(mai.ask(None, QUESTION))
            await asyncio.sleep(0.05)
            first.cancel()
            return str((await mai.ask(None, QUESTION)).text)

    assert asyncio.run(ask()) == "yes"


def test_journal_answers_the_same_question_in_a_later_process(
    write_script: Any, image: Image.Image, tmp_path: Path
) -> None:
    def cascade(numbers: list[int]) -> Cascade:
        script = write_script("large", map(short, numbers))
        # The file's name is in the fingerprint of the journal, its answers too: they are the same in all processes.
        return Cascade(engine="scripted", mode="large", large=script, journal=tmp_path / "j")

    with cascade([]) as mai, pytest.raises(MissingAnswer) as missing:
        mai.ask_blocking(image, QUESTION)
    found = re.search(r"doc_id (\d+)", str(missing.value))
    assert found is not None
    with cascade([int(found[1])]) as mai:
        first = mai.ask_blocking(image, QUESTION)
        with pytest.raises(MissingAnswer):
            mai.ask_blocking(image.resize((10, 10)), QUESTION)
    (journal,) = (tmp_path / "j").glob("*.jsonl")
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [record["call"]["text"] for record in lines[1:]] == ["[[yes]]"]
    changed = journal.read_text().replace("[[yes]]", "[[from the journal]]")
    journal.write_text(changed)
    with cascade([int(found[1])]) as mai:
        again = mai.ask_blocking(image, QUESTION)
    assert (first.text, again.text) == ("yes", "from the journal")


def test_end_of_the_process_stops_the_engines_while_threads_can_still_be_started(
    write_script: Any, tmp_path: Path
) -> None:
    script = write_script("large", [short(0, fault="hang")])
    (tmp_path / "script.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from lmms_eval_mai import Cascade\n"
        f"mai = Cascade(engine='scripted', mode='large', large='{script}')\n"
        "mai.start()\n"
        "def tell(future):\n"
        "    ThreadPoolExecutor().submit(print, 'cancelled:', future.cancelled())\n"
        "mai.submit(None, 'Is it blue?').add_done_callback(tell)\n"
        "print('end of the script')\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "end of the script\ncancelled: True\n", done.stderr
