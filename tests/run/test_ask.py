"""The Python API `Cascade`, with scripted answers."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from PIL import Image
from support.endpoints import ScriptedServer, served
from support.pair import EXITS, in_turn, record, records, written

from lmms_eval_mai import ArgumentError, Cascade, EngineCrashed, EngineStartError, SampleError, UnreadableImage
from lmms_eval_mai.method.prompts import instruction

QUESTION = "Is there a dog in the image?"
IMAGE = Image.new("RGB", (64, 48), "red")


def cascade(folder: Path, faults: Mapping[int, str] = MappingProxyType({}), **arguments: Any) -> Cascade:
    """Return a cascade whose questions leave at the exits in turn. `faults`: of the first calls of a question."""
    made = records("ask", [in_turn(number, "yes", "no") for number in range(12)], seconds=0)
    for one in (*made["small"], *made["large"]):
        one["fault"] = faults.get(one["doc_id"]) if one["prompt"] == "simple" else None
    return Cascade(**written(folder, made), **arguments)


def exits(traces: list[Any]) -> list[str]:
    assert all(trace.text == "yes" for trace in traces)
    return [trace.exit for trace in traces]


def test_questions_are_asked_one_by_one_and_many_at_once_awaited_or_blocking_as_in_a_notebook(
    tmp_path: Path,
) -> None:
    async def awaited() -> list[Any]:
        async with cascade(tmp_path, max_open_samples=3) as mai:
            first = await mai.ask(IMAGE, QUESTION)
            return [first, *await asyncio.gather(*(mai.ask(IMAGE, QUESTION) for _ in range(11)))]

    async def blocking() -> list[Any]:
        """An event loop runs in this thread."""
        with cascade(tmp_path, gen_kwargs={"seed": 3, "temperature": None}) as mai:
            first = mai.ask_blocking(IMAGE, QUESTION)
            assert first.settings.options == {"seed": 3}
            return [first, *(future.result() for future in [mai.submit(IMAGE, QUESTION) for _ in range(11)])]

    for ask in (awaited, blocking):
        assert exits(asyncio.run(ask())) == [*EXITS] * 4


def test_prompt_has_the_images_then_the_question_then_its_options_then_the_instruction(tmp_path: Path) -> None:
    one, two = Image.new("RGBA", (20, 10)), tmp_path / "two.png"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new("L", (10, 30)).save(two, exif=exif)
    images: Any = [one, two]
    options = ["red", "blue"]
    with cascade(tmp_path, method="large", log_prompts=True, max_open_samples=1) as mai:
        futures = [
            mai.submit(images, "Half \ud83d?", options),
            mai.submit(None, "Which?"),
            mai.submit(str(two), "Why?"),
        ]
        images.clear()  # the caller's lists are copied
        options[:] = ["wrong", "wrong"]
        found = [(future.result().calls[0].messages or ())[0]["content"] for future in futures]
    assert found == [
        ["<image 20x10>", "<image 30x10>", "Half \ufffd?\nA. red\nB. blue\n", instruction("S", "letter")],
        ["Which?\n", instruction("S", "word")],
        ["<image 30x10>", "Why?\n", instruction("S", "word")],
    ]


def test_error_of_one_question_fails_only_that_question(tmp_path: Path) -> None:
    (broken := tmp_path / "broken.png").write_bytes(b"\x89PNG no image")

    async def ask() -> list[Any]:
        async with cascade(tmp_path, {4: "error"}) as mai:
            given: Any = [IMAGE, tmp_path / "missing.png", broken, Image.new("RGB", (0, 9)), IMAGE, IMAGE]
            return await asyncio.gather(*(mai.ask(one, QUESTION) for one in given), return_exceptions=True)

    first, missing, unreadable, empty, failed, last = asyncio.run(ask())
    assert exits([first, last]) == ["agree_short", "transfer"]
    assert isinstance(failed, SampleError) and "ask document 4" in str(failed)
    for error, named in ((missing, "missing.png"), (unreadable, "broken.png"), (empty, "0 x 9")):
        assert isinstance(error, UnreadableImage) and named in str(error)


@pytest.mark.parametrize(
    "question", [(3, "?"), (None, " "), (None, "?", "red"), (None, "?", ["a", "a "]), ("https://a.b/c.png", "?")]
)
def test_wrong_question_is_refused_at_once(tmp_path: Path, question: Any) -> None:
    with cascade(tmp_path) as mai, pytest.raises(ArgumentError):
        mai.submit(*question)


def test_engines_answer_from_their_start_to_their_end_and_are_not_started_again(
    tmp_path: Path,
) -> None:
    mai = cascade(tmp_path)
    with pytest.raises(EngineCrashed, match="are not running"):
        mai.ask_blocking(IMAGE, QUESTION)
    mai.start()
    mai.start()
    assert mai.ask_blocking(IMAGE, QUESTION).text == "yes"
    mai.close()
    mai.close()
    with pytest.raises(EngineCrashed, match="are not running"):
        mai.ask_blocking(IMAGE, QUESTION)
    with pytest.raises(EngineStartError, match="Make a new object"):
        mai.start()
    closed = Cascade(method="small", small="http://127.0.0.1:9/v1", retry_for=0.1)
    with pytest.raises(EngineStartError, match=r"127\.0\.0\.1:9"), closed:
        pass


def test_cancelled_question_leaves_its_place_and_waiting_ones_are_cancelled_when_the_engines_stop(
    tmp_path: Path,
) -> None:
    with cascade(tmp_path, {0: "hang", 2: "hang"}, max_open_samples=1) as mai:
        futures = [mai.submit(None, QUESTION) for _ in range(5)]
        futures[0].cancel()
        assert futures[1].result().text == "yes"
    assert all(future.cancelled() for future in futures[2:])


def test_store_answers_the_same_question_in_a_later_process(tmp_path: Path) -> None:
    with served(server := ScriptedServer()) as url:
        for image, made in ((IMAGE, 1), (IMAGE, 1), (IMAGE.resize((10, 10)), 2)):
            with Cascade(method="small", small=url, store=tmp_path / "store") as mai:
                assert mai.ask_blocking(image, QUESTION).text == "Yes"
            assert len(server.seen) == made


@pytest.mark.slow
def test_end_of_the_process_stops_the_engines_while_threads_can_still_be_started(tmp_path: Path) -> None:
    models = written(tmp_path, {"large": [record("ask", 0, "simple", "", fault="hang")]})
    (tmp_path / "script.py").write_text(
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from lmms_eval_mai import Cascade\n"
        f"mai = Cascade(method='large', **{models})\n"
        "mai.start()\n"
        "def tell(future):\n"
        "    ThreadPoolExecutor().submit(print, 'cancelled:', future.cancelled())\n"
        "mai.submit(None, 'Is it blue?').add_done_callback(tell)\n"
        "print('end of the script')\n"
    )
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert done.stdout == "end of the script\ncancelled: True\n", done.stderr
