"""A model's own thinking: the switch in its chat template, and its end in an output.

The chat templates of hybrid models (Qwen3.5, Gemma 4, GLM-4.6V) have the variable `enable_thinking`, which is mostly on
by default. All calls but `native` ones switch it off. A template without the variable is rendered as it always was.
"""

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lmms_eval_mai.contract import PROMPTS, EngineConfig, Prompt, Reply, Sampling, TokenLogprobs
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.user_input import path_of

SWITCH = "enable_thinking"
MARKS = (
    ("<think>", "</think>"),
    ("<|channel>thought", "<channel|>"),  # Gemma 4
    ("◁think▷", "◁/think▷"),  # Kimi-VL
)
"""The texts before and after a thinking. Many templates put the first one into the prompt."""
STARTS = tuple(start for start, _ in MARKS)
MUST_NOT_THINK = tuple(prompt for prompt, row in PROMPTS.items() if not row.thinks and prompt != "score")
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "processor_config.json", "tokenizer_config.json")
"""Where a checkpoint has its chat template. vLLM and transformers use the first one."""

Parser = Callable[[str], tuple[str | None, str | None]]
"""Returns the thinking and the answer in an output. None: there is none."""


class ThinkingSwitch:
    """What one model's chat template gets, and whether it can let the model think by itself."""

    def __init__(self, config: EngineConfig, template: str | None) -> None:
        """`template`: None if it cannot be read, because a server has it. Raises `ArgumentError`."""
        self._config = config
        self.is_known = template is None or SWITCH in template
        self.has_special_marks = "<|channel>" in (template or "")
        """Whether the marks are special tokens, which an engine must show."""
        after = (template or "").rpartition("add_generation_prompt")[2]
        self._can_think = self.is_known or any(start in after for start in STARTS)  # Qwen3-VL Thinking always thinks
        given = config.arguments.get("chat_template_kwargs")
        self.given: Mapping[str, Any] = {} if given is None else given
        argument = f"{config.side}_chat_template_kwargs={given}"
        if not isinstance(self.given, Mapping):
            raise ArgumentError(f"{argument} is invalid: expected a mapping.")
        if SWITCH in self.given:
            raise ArgumentError(
                f"{argument}: each call sets {SWITCH} itself. Leave it out, and give think=native if the models must "
                "think by themselves."
            )
        self._check(config.native)

    def arguments(self, prompt: Prompt) -> dict[str, Any]:
        """Return the additional arguments of the chat template for a prompt. Raises `ArgumentError`."""
        self._check(prompt.native)  # a request to a server may ask for it
        return {**self.given, **({SWITCH: prompt.native} if self.is_known else {})}

    def _check(self, native: bool) -> None:
        if native and not self._can_think:
            raise ArgumentError(
                "think=native needs a model that can think by itself, and the chat template of "
                f"{self._config.side}={self._config.model} has no {SWITCH}. Use think=R, or another model "
                "(docs/first-run.md names some)."
            )


def template_of(model: str, revision: str | None = None) -> str:
    """Return the chat template of a checkpoint, also of one on the Hugging Face hub. Empty: none was found. Raises
    `ArgumentError`."""
    from transformers.utils import cached_file

    for name in TEMPLATE_FILES:
        file = cached_file(
            str(path_of(model)) if path_of(model).is_dir() else model,
            name,
            revision=revision,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
        )
        try:
            text = Path(file).read_text(encoding="utf-8") if file else ""
            if text and name.endswith(".json"):
                text = str(json.loads(text).get("chat_template") or "")
        except ValueError as error:
            raise ArgumentError(f"{file} is damaged ({error}). Download or copy the checkpoint again.") from None
        if text:
            return text
    return ""


def split(text: str, opened: str, is_cut: bool) -> tuple[str | None, str]:
    """Return the thinking at the beginning of an output, without its marks, and what follows it. The first end mark
    of its family ends it; without a start mark, the first one of any family. None: the model did not think.

    `opened`: the start mark at the end of the prompt, if there is one. `is_cut`: whether a limit ended the output. A
    thinking without an end mark has no answer.
    """
    begun = next((start for start in STARTS if text.lstrip().startswith(start)), "")
    ends = [end for start, end in MARKS if start == (begun or opened)] or [end for _, end in MARKS]
    found = [(text.index(end), end) for end in ends if end in text]
    if not (found or begun or opened or is_cut):
        return None, text
    index, end = min(found, default=(len(text), ""))
    return text[:index].strip().removeprefix(begun).strip(), text[index + len(end) :].lstrip()


def with_thinking(reply: Reply, prompt: Prompt, shown: str, parser: Parser | None = None) -> Reply:
    """Return a reply whose thinking is apart from its text, if the model's own thinking is on.

    `shown`: the end of the prompt as the model sees it. `parser`: used in place of the marks.
    """
    mark = next((start for start in STARTS if shown.rstrip().endswith(start)), "")
    if not prompt.native:
        return _undivided(reply, mark)
    if parser is None:
        thinking, text = split(reply.text, mark, reply.finish_reason != "stop")
    else:
        parsed, answer = parser(reply.text)
        text = (answer or "").lstrip()
        thinking = None if parsed is None and answer == reply.text else (parsed or "").strip()
    return dataclasses.replace(reply, thinking=thinking, text=text)


def _undivided(reply: Reply, mark: str) -> Reply:
    """Return a reply with its whole text, as servers have it: with the mark at the end of its prompt, and without the
    marks of an empty thinking."""
    if mark:
        return dataclasses.replace(reply, text=f"{mark}\n{reply.text.lstrip()}")
    text, logprobs = without_empty(reply.text), reply.logprobs
    if logprobs is not None and text != reply.text:  # from the last token on at which the text may begin
        for first in reversed(range(len(logprobs.texts))):  # engines differ in whether the tokens of marks have a text
            if "".join(logprobs.texts[first:]).lstrip().startswith(text):
                logprobs = TokenLogprobs(logprobs.texts[first:], logprobs.values[first:])
                break
    return dataclasses.replace(reply, text=text, logprobs=logprobs)


def without_empty(text: str) -> str:
    """Return a text without the marks of an empty thinking at its beginning. Gemma 4 writes them if its thinking is
    off."""
    thinking, rest = split(text, opened="", is_cut=False)
    return rest if thinking == "" and text.lstrip().startswith(STARTS) else text


def thought_first(prompt: str, text: str, thinking: str | None) -> bool:
    """Return whether a model thought by itself in a call that must not. The arguments are fields of the call."""
    in_text = any(end in text or text.lstrip().startswith(start) for start, end in MARKS)
    return prompt in MUST_NOT_THINK and (thinking is not None or in_text)


def without_budget(sampling: Sampling) -> Sampling:
    """Return the decoding for an engine that cannot end a thinking: the budget limits the whole output."""
    budget = sampling.thinking_token_budget
    if budget is None:
        return sampling
    return dataclasses.replace(sampling, max_tokens=min(sampling.max_tokens, budget), thinking_token_budget=None)
