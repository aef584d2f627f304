"""The Python API `Cascade`: threads, processes, changed lists, unusual images and texts. Scripted answers."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from support.logs import logged

from lmms_eval_mai import ArgumentError, Cascade, EngineCrashed, JournalError, MaiError
from lmms_eval_mai.run.ask import open_image, sample_of

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


def test_forked_process_can_neither_ask_nor_stop_the_engines_of_its_parent(cascade: NewCascade) -> None:
    with cascade() as mai:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with mai:  # __enter__ would wait without end
                    pass
            except MaiError:
                mai.close()
                try:
                    mai.submit(None, QUESTION)
                except EngineCrashed:
                    code = 2
                except MaiError as error:
                    code = 0 if "was forked" in str(error) else 3
            finally:
                os._exit(code)
        end = time.monotonic() + 20
        while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
            time.sleep(0.02)
        if ended[0] == 0:
            os.kill(child, 9)
        assert ended == (child, 0)
        assert mai.ask_blocking(None, QUESTION).text == "yes"


def test_engines_start_once_if_several_threads_start_them(cascade: NewCascade) -> None:
    for _ in range(5):
        mai = cascade()
        with logged() as messages, ThreadPoolExecutor(4) as threads:
            for started in [threads.submit(mai.start) for _ in range(4)]:
                started.result()
        mai.close()
        assert sum("large is ready" in text for text in messages) == 1


def test_every_question_ends_if_the_engines_stop_while_several_threads_submit(cascade: NewCascade) -> None:
    for _ in range(10):
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


@pytest.mark.usefixtures("task_manager")  # the parser of options imports lmms-eval's tasks
def test_lists_that_are_changed_after_a_question_was_submitted_do_not_change_it(cascade: NewCascade) -> None:
    with cascade(max_open_samples=1, log_prompts=True) as mai:
        images, options = [Image.new("RGB", (9, 8))], ["red", "blue"]
        futures = [mai.submit(images, "Which?", options) for _ in range(3)]
        images.clear()
        options[:] = ["wrong", "wrong"]
        for future in futures:
            content = future.result().prompts[0][0]["content"]
            assert content[:2] == ["<image 9x8>", "Which?\nA. red\nB. blue\n"]


@pytest.mark.usefixtures("task_manager")
def test_options_may_come_from_a_generator_and_must_have_an_order(cascade: NewCascade) -> None:
    with cascade(log_prompts=True) as mai:
        trace = mai.ask_blocking(None, "Which?", (text for text in ("red", "blue")))  # type: ignore[arg-type]
        assert trace.prompts[0][0]["content"][0] == "Which?\nA. red\nB. blue\n"
        for options in ({"red", "blue"}, {"red": 1, "blue": 2}, b"ab"):
            with pytest.raises(ArgumentError, match="expected a list of texts"):
                mai.submit(None, "Which?", options)  # type: ignore[arg-type]


def test_half_of_a_surrogate_pair_in_a_question_is_replaced(cascade: NewCascade) -> None:
    with cascade(log_prompts=True) as mai:
        trace = mai.ask_blocking(None, "What is \ud83d?")
    assert trace.prompts[0][0]["content"][0] == "What is \ufffd?\n"


def test_values_that_official_decoding_would_replace_are_refused(cascade: NewCascade) -> None:
    for name, value in (("temperature", 0), ("temperature", 0.2)):
        with pytest.raises(ArgumentError, match=f"decoding=official sets {name}="):
            Cascade(pair="qwen3vl-2b-8b", decoding="official", gen_kwargs={name: value})


def test_second_cascade_does_not_write_or_remove_the_journal_of_the_first(
    write_script: Any, cascade: NewCascade, tmp_path: Path
) -> None:
    with cascade() as mai:
        number = sample_of(None, QUESTION, None, mai._sampling).doc_id
    script = write_script("l", [{"task": "ask", "doc_id": number, "stage": "short", "text": "[[yes]]"}])
    given = {"large": script, "journal": tmp_path / "j"}
    with cascade(**given) as first:
        for folder in (tmp_path / "j", tmp_path / "j" / ".." / "j"):
            with pytest.raises(JournalError, match="Another run with the same arguments is writing"):
                cascade(large=script, journal=folder).start()
        assert [first.submit(None, QUESTION).result().text for _ in range(3)] == ["yes"] * 3
    (journal,) = (tmp_path / "j").glob("*.jsonl")
    assert len(journal.read_text().splitlines()) == 4
    with cascade(**given) as again:  # after the first one has closed it
        assert again.ask_blocking(None, QUESTION).text == "yes"


def test_grey_image_of_16_bits_keeps_its_brightness(tmp_path: Path) -> None:
    for mode in ("I;16", "I;16B"):
        image = Image.new(mode, (3, 1))
        for x, value in enumerate((0, 30_000, 65_535)):
            image.putpixel((x, 0), value)
        assert [open_image(image).pixels.getpixel((x, 0))[0] for x in range(3)] == [0, 117, 255]  # type: ignore[index]


def test_many_questions_about_one_photo_that_is_not_decoded_yet_all_turn_it_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.effect_noise((900, 600), 50).save(tmp_path / "photo.jpg", exif=exif)
    for _ in range(5):
        image = Image.open(tmp_path / "photo.jpg")
        with ThreadPoolExecutor(6) as threads:
            found = list(threads.map(lambda _, image=image: open_image(image).pixels.size, range(12)))  # type: ignore[misc]
        assert found == [(600, 900)] * 12
