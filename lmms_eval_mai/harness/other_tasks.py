"""Prompts of other lmms-eval tasks, which ask for an answer format of their own.

Short answers use the task's own prompt. For the thinking and the transfer, the task's own format sentence is removed
from the question, because the prompts of the paper have another one.
"""

from typing import Any

from lmms_eval_mai.contract import Message


def format_sentence(doc_to_messages: Any, prompt: tuple[Message, ...]) -> str:
    """Return the sentence that the task of this method puts at the end of this prompt. Empty if none is found.

    The sentence is the `post_prompt`, `multiple_choice_prompt` or the like in the task's `lmms_eval_specific_kwargs`.
    """
    task = getattr(doc_to_messages, "__self__", None)
    options = getattr(task, "lmms_eval_specific_kwargs", None) or {}
    sentences = [
        value.strip()
        for name, value in options.items()
        if name.endswith("prompt") and name != "pre_prompt" and isinstance(value, str)
    ]
    end = prompt[-1].content[-1] if prompt[-1].content else None
    found = [sentence for sentence in sentences if isinstance(end, str) and end.rstrip().endswith(sentence)]
    sentence = max(found, key=len, default="")
    return sentence if sentence and has_text(_without(sentence, prompt)) else ""


def question_of(prompt: tuple[Message, ...], sentence: str) -> tuple[Message, ...]:
    """Return the prompt without its format sentence, so that another instruction can follow.

    The separator before the sentence is kept. Without a sentence, a line break is added.
    """
    if sentence:
        return _without(sentence, prompt)
    *before, last = prompt
    return (*before, Message(last.role, (*last.content, "\n")))


def has_text(messages: tuple[Message, ...]) -> bool:
    """Return whether the messages contain words."""
    return any(isinstance(part, str) and part.strip() for message in messages for part in message.content)


def notice(task: str, sentence: str) -> str:
    """Return how the cascade uses the prompt of another task, for the user."""
    if sentence:
        thinking = f'For the thinking and the transfer, the paper\'s prompts replace its "{sentence}"'
    else:
        thinking = "For the thinking and the transfer, the paper's prompts follow it, as no format sentence was found"
    return f"{task} is not a task of lmms-eval-mai. Short answers use its own prompt. {thinking}."


def _without(sentence: str, prompt: tuple[Message, ...]) -> tuple[Message, ...]:
    *before, last = prompt
    *parts, end = last.content
    question = str(end).rstrip().removesuffix(sentence)
    if question and not question[-1].isspace():
        question += "\n"
    return (*before, Message(last.role, (*parts, question)))
