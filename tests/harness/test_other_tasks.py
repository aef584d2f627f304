"""Tasks of lmms-eval itself: their own prompts for short answers, and ours for the thinking and the transfer."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from support.documents import RULES, texts_agree
from support.logs import logged
from support.pope_scripts import Record, counts, gold_of, record
from support.samples import Recorder, opened, scripted_pair
from support.tasks import BUILT_IN, Loaded, texts

from lmms_eval_mai.contract import Image, Message, Prompt
from lmms_eval_mai.harness.requests import format_sentence, without_sentence
from lmms_eval_mai.method.methods import METHODS
from lmms_eval_mai.method.run import run_sample
from lmms_eval_mai.method.sample import Sample

ANSWERS = {"simple": "one", "think": "Look. [[two]]", "transfer": "three", "task": "one"}
OTHER_ANSWERS = ANSWERS | {"simple": "other", "task": "other"}


def sample_of(task: Any, doc_id: int) -> Sample:
    request = next(instance for instance in task.instances if instance.doc_id == doc_id)
    return opened(request, {task.config.task: {request.args[5]: task.test_docs()}})


def prompts_of(method: str, one: Sample) -> dict[tuple[str, str], Prompt]:
    """Run one sample. Returns its prompts by side and name."""
    scripts = Recorder(ANSWERS), Recorder(OTHER_ANSWERS)

    async def run_one() -> None:
        await run_sample(one, await scripted_pair(*scripts, method=METHODS[method]))

    asyncio.run(run_one())
    return {(prompt.key.side, prompt.key.prompt): prompt for script in scripts for prompt in script.prompts}


def text(messages: tuple[Message, ...]) -> str:
    return "".join(part for message in messages for part in message.content if isinstance(part, str))


def images(messages: tuple[Message, ...]) -> list[str]:
    return [part.uuid for message in messages for part in message.content if isinstance(part, Image)]


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


TWO = {"mcq_post_prompt": "The letter.", "na_post_prompt": "A number."}


@pytest.mark.parametrize(
    ("options", "prompt", "sentence", "question"),
    [
        ({"post_prompt": "\nOne word."}, "What?\nOne word.", "One word.", "What?\n"),
        ({"post_prompt": "One word."}, "What?One word.", "One word.", "What?\n"),
        (TWO, "Which?\nA number.", "A number.", "Which?\n"),
        ({"post_prompt": "word.", "long_prompt": "One word."}, "What? One word.", "One word.", "What? "),
        # These texts are not at the end, or are not format sentences.
        ({"post_prompt": "One word."}, "One word. What?", "", "One word. What?\n"),
        ({"prompt_type": "format", "default": {"post_prompt": "x"}}, "Which format", "", "Which format\n"),
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

    class Task:
        config = SimpleNamespace(description="")
        eval_docs_no_media = (doc,)

        def doc_to_text(self, doc: Any) -> str:
            return prompt.format(*doc["options"])

        def doc_to_messages(self, doc: Any) -> Any:
            return [{"role": "user", "content": self.doc_to_text(doc)}]

    request = SimpleNamespace(
        args=("", Task().doc_to_messages, {}, 0, "own", "test"), metadata={}, request_type="generate_until"
    )
    one = opened(request, {"own": {"test": [doc]}})
    assert one.answer_form == kind and not texts_agree(one.benchmark, one.doc, "A cat", "A dog", RULES)
    assert texts_agree(one.benchmark, one.doc, "(B)", "B", RULES) is (kind == "letter")
    think, transfer = (prompts_of("full_rt", one)[key] for key in (("small", "think"), ("large", "transfer")))
    assert all(
        ("letter from the given choices" in text(found.messages)) is (kind == "letter") for found in (think, transfer)
    )


@pytest.mark.slow
def test_a_run_of_lmms_evals_tasks_is_scored_as_one_model_is_and_tells_about_the_prompts_once_per_task(
    evaluate: Any, write_script: Any
) -> None:
    records: list[Record] = []
    golds = {"pope": gold_of("POPE", "test"), "mmmu_val": gold_of("MMMU", "validation")}
    for name, answers in golds.items():
        for doc_id, gold in enumerate(answers):
            # The scorer of pope reads no answer in brackets. MMMU's finds the letter in this text.
            written = gold.title() if name == "pope" else f"The answer is ({gold})" if len(gold) == 1 else gold
            short = f"[[{written}]]" if doc_id == 3 and name == "pope" else written
            records.append(record(name, doc_id, "task", short))
    script = write_script("both", records)
    given = {"engine": "scripted", "small": script, "large": script, "log_prompts": True}
    runs = []
    for method in ("mai", "large"):
        with logged() as messages:
            runs.append(evaluate([*golds], **given, method=method))
        notices = [text for text in messages if "is not a task of lmms-eval-mai" in text]
        assert [text.split()[1] for text in notices] == ([*golds] if method == "mai" else [])
    for name in golds:
        assert {trace["exit"] for trace in counts(runs[0], name)} == {"agree_short"}
        responses = [{one["doc_id"]: one["resps"] for one in run["samples"][name]} for run in runs]
        prompts = [[trace["calls"][-1]["messages"] for trace in counts(run, name)] for run in runs]
        assert responses[0] == responses[1] and prompts[0] == prompts[1] and len(prompts[0]) == 12
    assert runs[0]["results"]["pope"] == runs[1]["results"]["pope"]
    assert runs[0]["results"]["pope"]["pope_accuracy,none"] == 11 / 12
