"""The Python API `Cascade`: threads, processes and unusual images. Scripted answers."""

import os
import signal
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.logs import logged

from lmms_eval_mai import Cascade, EngineCrashed, JournalError, MaiError
from lmms_eval_mai.run.ask import open_image

QUESTION = "Is there a dog in the image?"
NewCascade = Callable[..., Cascade]


@pytest.fixture
def cascade(write_script: Callable[[str, Iterable[Any]], Path]) -> NewCascade:
    """Return a function that returns a cascade of one model, which answers yes to 50 questions.

    An answer takes 0.1 s: a function that is added to a future with a result runs at once, in the thread that adds it.
    """
    answer = {"task": "ask", "stage": "short", "text": "[[yes]]", "seconds": 0.1}
    script = write_script("l", [{**answer, "doc_id": number} for number in range(50)])
    return lambda **arguments: Cascade(engine="scripted", mode="large", **{"large": script, **arguments})


def in_callback(mai: Cascade, function: Callable[[], object]) -> BaseException | None:
    """Call a function when a question is answered. Returns the error that it raised."""
    ended: Future[BaseException | None] = Future()

    def call(_: object) -> None:
        if threading.current_thread() is threading.main_thread():  # the answer came before the function was added
            mai.submit(None, QUESTION).add_done_callback(call)
            return
        try:
            function()
        except BaseException as error:
            ended.set_result(error)
        else:
            ended.set_result(None)

    mai.submit(None, QUESTION).add_done_callback(call)
    return ended.result(timeout=10)


def test_function_that_is_called_with_an_answer_may_submit_questions_but_not_wait_for_them(
    cascade: NewCascade,
) -> None:
    with cascade() as mai:
        for waits in (lambda: mai.ask_blocking(None, QUESTION), mai.close, mai.start):
            error = in_callback(mai, waits)
            assert isinstance(error, MaiError) and "must not wait for an answer" in str(error)
        submitted: list[Future[Any]] = []
        assert in_callback(mai, lambda: submitted.append(mai.submit(None, QUESTION))) is None
        assert submitted[0].result(timeout=10).text == "yes"


def run_in_child(function: Callable[[], object]) -> None:
    """Run a function in a forked process. Fails if it raises an error or takes longer than 20 s."""
    child = os.fork()
    if child == 0:
        code = 1
        signal.alarm(20)
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_forked_process_can_neither_ask_nor_stop_the_engines_of_its_parent(cascade: NewCascade) -> None:
    def use() -> None:
        with pytest.raises(MaiError), mai:  # __enter__ would wait without end
            pass
        mai.close()
        with pytest.raises(MaiError, match="was forked") as error:
            mai.submit(None, QUESTION)
        assert not isinstance(error.value, EngineCrashed)

    with cascade() as mai:
        run_in_child(use)
        assert mai.ask_blocking(None, QUESTION).text == "yes"


@pytest.mark.parametrize("waits", ["close", "start"])
def test_function_that_is_called_because_the_engines_stop_may_not_wait_for_them_either(
    write_script: Any, waits: str
) -> None:
    script = write_script("l", [{"task": "ask", "doc_id": 0, "stage": "short", "text": "", "fault": "hang"}])
    errors: list[BaseException] = []
    with Cascade(engine="scripted", mode="large", large=script) as mai:

        def wait(_: object) -> None:
            try:
                getattr(mai, waits)()
            except MaiError as error:
                errors.append(error)

        mai.submit(None, QUESTION).add_done_callback(wait)
    assert ["must not wait for an answer" in str(error) for error in errors] == [True]


def test_cascade_that_was_made_before_a_fork_can_be_started_and_stopped_in_the_child(cascade: NewCascade) -> None:
    mai = cascade()

    def use() -> None:
        with mai:
            assert mai.ask_blocking(None, QUESTION).text == "yes"
        with pytest.raises(EngineCrashed):
            mai.submit(None, QUESTION)

    run_in_child(use)


def test_forked_process_leaves_the_journal_of_its_parent(cascade: NewCascade, tmp_path: Path) -> None:
    with cascade(journal=tmp_path / "j") as mai:
        run_in_child(mai.close)
        assert len(list((tmp_path / "j").glob("*.jsonl"))) == 1


def test_close_in_another_thread_is_before_or_after_a_start_and_never_in_its_middle(
    cascade: NewCascade, tmp_path: Path
) -> None:
    mai = cascade(journal=tmp_path / "j")
    mai.start()
    for _ in range(30):
        with ThreadPoolExecutor(2) as threads:
            closing, starting = threads.submit(mai.close), threads.submit(mai.start)
            closing.result()
            starting.exception()  # the close may have come in between
        try:
            future = mai.submit(None, QUESTION)
        except EngineCrashed:
            mai.start()
            continue
        assert not isinstance(future.exception(), JournalError)
    mai.close()


def test_engines_start_once_if_several_threads_start_them(cascade: NewCascade) -> None:
    for _ in range(2):
        mai = cascade()
        with logged() as messages, ThreadPoolExecutor(4) as threads:
            for started in [threads.submit(mai.start) for _ in range(4)]:
                started.result()
        mai.close()
        assert sum("large is ready" in text for text in messages) == 1


def test_every_question_ends_if_the_engines_stop_while_several_threads_submit(cascade: NewCascade) -> None:
    for _ in range(3):
        mai = cascade()
        mai.start()
        futures: list[Future[Any]] = []
        begun = threading.Barrier(4)

        def submit(mai: Cascade = mai, futures: list[Future[Any]] = futures, begun: Any = begun) -> bool:
            begun.wait()
            for _ in range(2000):
                try:
                    futures.append(mai.submit(None, QUESTION))
                except EngineCrashed:
                    return True
            return False

        with ThreadPoolExecutor(3) as threads:
            stopped = [threads.submit(submit) for _ in range(3)]
            begun.wait()
            mai.close()
            assert all(future.result() for future in stopped)
        assert all(future.done() for future in futures)


def test_grey_image_of_16_bits_keeps_its_brightness(tmp_path: Path) -> None:
    for mode in ("I;16", "I;16B"):
        image = Image.new(mode, (3, 1))
        for x, value in enumerate((0, 30_000, 65_535)):
            image.putpixel((x, 0), value)
        assert [open_image(image).pixels.getpixel((x, 0))[0] for x in range(3)] == [0, 117, 255]  # type: ignore[index]


def test_many_questions_about_one_photo_that_is_not_decoded_yet_all_get_its_pixels_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.effect_noise((900, 600), 50).save(tmp_path / "photo.jpg", exif=exif)
    expected = open_image(tmp_path / "photo.jpg")
    assert expected.pixels.size == (600, 900)
    for _ in range(3):
        image = Image.open(tmp_path / "photo.jpg")
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda _, image=image: open_image(image).uuid, range(12)))  # type: ignore[misc]
        assert found == [expected.uuid] * 12
