"""Requests of lmms-eval become samples: their prompts, which other tasks give themselves, and their order."""

from types import SimpleNamespace
from typing import Any

import pytest
from support.documents import RULES, texts_agree
from support.samples import opened, run_method
from support.tasks import BUILT_IN, Loaded, texts

from lmms_eval_mai.contract import Image as PromptImage
from lmms_eval_mai.contract import Message, Prompt
from lmms_eval_mai.harness.requests import format_sentence, without_sentence
from lmms_eval_mai.method.sample import Sample

ANSWERS = {"simple": "one", "think": "Look. [[two]]", "transfer": "three", "task": "one"}
OTHER_ANSWERS = ANSWERS | {"simple": "other", "task": "other"}


class OneQuestion:
    """A task of lmms-eval whose document has this chat."""

    def __init__(self, chat: list[dict[str, Any]], doc: Any = None) -> None:
        self.chat = chat
        self.config = SimpleNamespace(description="")
        self.eval_docs_no_media: list[Any] = [doc or {}]

    def doc_to_text(self, doc: Any) -> str:
        return str(self.chat[-1]["content"])

    def doc_to_messages(self, doc: Any) -> list[dict[str, Any]]:
        return self.chat

    def sample(self, context: str = "", repeat: int = 0, **gen_kwargs: Any) -> Sample:
        args = (context, self.doc_to_messages, gen_kwargs, 0, "other", "test", "new")
        request = SimpleNamespace(args=args, metadata={}, request_type="generate_until")
        return opened(request, {"other": {"test": self.eval_docs_no_media}}, repeat)


def sample_of(task: Any, doc_id: int) -> Sample:
    request = next(instance for instance in task.instances if instance.doc_id == doc_id)
    return opened(request, {task.config.task: {request.args[5]: task.test_docs()}})


def prompts_of(method: str, one: Sample) -> dict[tuple[str, str], Prompt]:
    """Run one sample. Returns its prompts by side and name."""
    _, small, large, _ = run_method(method, one, ANSWERS, OTHER_ANSWERS)
    return {(prompt.key.side, prompt.key.prompt): prompt for prompt in (*small.prompts, *large.prompts)}


def text(messages: tuple[Message, ...]) -> str:
    return "".join(part for message in messages for part in message.content if isinstance(part, str))


def images(messages: tuple[Message, ...]) -> list[str]:
    return [part.uuid for message in messages for part in message.content if isinstance(part, PromptImage)]


@pytest.mark.parametrize("benchmark", BUILT_IN)
def test_short_answers_have_the_tasks_own_prompt_and_the_thinking_that_of_our_task(
    tasks: Loaded, benchmark: str
) -> None:
    task = tasks.built_in[benchmark]
    for doc_id in (0, 11):
        one = sample_of(task, doc_id)
        theirs, ours = (
            prompts_of("mai", one),
            prompts_of("mai", sample_of(tasks.chat[f"{benchmark}_r"], doc_id)),
        )
        own = "".join(texts(task.doc_to_messages(task.test_docs()[doc_id])))
        for side in ("small", "large"):
            alone = prompts_of(side, one)[side, "task"]
            assert alone.messages == theirs[side, "task"].messages and text(alone.messages) == own
        assert one.sampling["task"].max_tokens == task.config.generation_kwargs["max_new_tokens"]
        assert one.sampling["think"].max_tokens == 4096
        for key in (("small", "think"), ("large", "transfer")):
            assert images(theirs[key].messages) == images(ours[key].messages)
        thinking = text(theirs["small", "think"].messages)
        if benchmark == "realworldqa":  # it has no format sentence, so our prompt follows its own
            assert thinking.startswith(own + "\nPlease think step by step")
        else:
            assert thinking == text(ours["small", "think"].messages)


def task_with(**options: Any) -> Any:
    """Return a task with these `lmms_eval_specific_kwargs`."""
    return SimpleNamespace(lmms_eval_specific_kwargs=options)


@pytest.mark.parametrize(
    ("options", "prompt", "sentence", "question"),
    [
        ({"post_prompt": "\nOne word."}, "What?\nOne word.", "One word.", "What?\n"),
        ({"post_prompt": "word.", "long_prompt": "One word."}, "What? One word.", "One word.", "What? "),
        # These texts are not at the end, or are not format sentences.
        ({"post_prompt": "One word."}, "One word. What?", "", "One word. What?\n"),
        # Without this text the prompt would ask nothing.
        ({"prompt": "Describe the image."}, "Describe the image.", "", "Describe the image.\n"),
    ],
)
def test_the_tasks_own_sentence_at_the_end_is_removed_from_the_question(
    options: dict[str, Any], prompt: str, sentence: str, question: str
) -> None:
    before = () if "Describe" in prompt else (Message("system", ("Look.",)),)
    messages = (*before, Message("user", (prompt,)))
    found = format_sentence(task_with(**options), messages)
    rest = without_sentence(messages, found)
    assert found == sentence and rest[:-1] == before and "".join(map(str, rest[-1].content)) == question


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ("What is it? {0}, {1}\nAnswer with the text of the option.", "word"),
        ("What is it?\n{0}\n{1}\nA or B?", "word"),
        ("What is it?\nA. {0}\nB. {1}\nThe letter.", "letter"),
        ("What is it? (A) {0} (B) {1}", "letter"),
        ("What is it?\nAnswer with the option letter from the given choices directly.", "letter"),  # in the picture
    ],
)
def test_the_prompt_of_another_task_decides_whether_its_answers_are_letters(prompt: str, kind: str) -> None:
    doc = {"options": ["a cat", "a dog"], "A": "a cat", "B": "a dog", "letters": "AB"}
    one = OneQuestion([{"role": "user", "content": prompt.format(*doc["options"])}], doc).sample()
    assert one.answer_form == kind and not texts_agree(one.benchmark, one.doc, "A cat", "A dog", RULES)
    assert texts_agree(one.benchmark, one.doc, "(B)", "B", RULES) is (kind == "letter")
    think, transfer = (prompts_of("full_rt", one)[key] for key in (("small", "think"), ("large", "transfer")))
    assert all(
        ("letter from the given choices" in text(found.messages)) is (kind == "letter") for found in (think, transfer)
    )


@pytest.mark.parametrize(
    ("context", "system"),
    [
        ("Look twice.Which?", "Look twice."),  # as lmms-eval's models do, it takes the place of the task's own
        ("Which?", "The task's."),
        ("Another text than that of the document", "The task's."),
    ],
)
def test_a_system_message_of_the_task_stays_without_a_system_instruction(context: str, system: str) -> None:
    task = OneQuestion([{"role": "system", "content": "The task's."}, {"role": "user", "content": "Which?"}])
    found = [(message.role, *message.content) for message in task.sample(context).task_prompt]
    assert found == [("system", system), ("user", "Which?")]


def test_lone_surrogates_are_replaced_and_repeats_have_different_seeds() -> None:
    task = OneQuestion([{"role": "user", "content": [{"type": "text", "text": "half \ud83d, 漢字 \U0001f600"}]}])
    samples = [task.sample(repeat=repeat, seed=7) for repeat in range(3)]
    assert samples[0].task_prompt[0].content == ("half \ufffd, 漢字 \U0001f600",)
    assert [sample.sampling["simple"].seed for sample in samples] == [7, 8, 9]
