"""A loaded model with its processor: it makes batches of the calls that wait, and answers them. All its methods run in
one thread."""

import contextlib
import os
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    RepetitionPenaltyLogitsProcessor,
    StopStringCriteria,
)

from lmms_eval_mai.contract import Call, EngineConfig, Prompt, Sampling, TokenLogprobs, TokenWeights
from lmms_eval_mai.engines.logs import quiet_transformers
from lmms_eval_mai.engines.messages import end_of, space_for_thinking, without_thinking
from lmms_eval_mai.engines.thinking import ThinkingSwitch, with_thinking
from lmms_eval_mai.engines.transformers.attention import ATTENTION_FUNCTION, read_attention
from lmms_eval_mai.engines.transformers.generation import Steps, assisted_call, decoding, reset_generation_config
from lmms_eval_mai.engines.transformers.inputs import (
    Inputs,
    build_inputs,
    has_images,
    images_of,
    on_device,
    shown_text,
)
from lmms_eval_mai.engines.transformers.options import TransformersOptions, device_of
from lmms_eval_mai.engines.transformers.token_texts import cut_at_stop, find_in_prompt, texts_of_output
from lmms_eval_mai.errors import MaiError, PromptTooLong, SampleError, UnreadableImage
from lmms_eval_mai.redaction import error_text

PROCESS_STATE = threading.Lock()
"""Held while an engine uses what belongs to the whole process: transformers sets PyTorch's default dtype and its own
verbosity while it loads a model, and a seed is that of PyTorch's random numbers."""


@dataclass(eq=False)
class Request:
    """One call that waits for its answer."""

    prompt: Prompt
    sampling: Sampling
    submitted_at: float
    """On the clock of `time.perf_counter`."""
    result: Call | SampleError | None = None
    is_done: bool = False
    """Whether nobody waits any more: the call was answered or cancelled."""

    @property
    def is_scoring_call(self) -> bool:
        """Whether the call asks for attention. It is one forward pass and has no output."""
        return self.prompt.attention is not None

    @property
    def is_seeded(self) -> bool:
        """Whether a seed draws the tokens of this call."""
        return self.sampling.seed is not None and self.sampling.temperature > 0

    def batch_key(self) -> object:
        """Return a key that is equal for calls that can share a batch."""
        if self.is_seeded or self.is_scoring_call:
            return self
        return (self.sampling, self.prompt.logprobs, has_images(self.prompt))


class LoadedModel:
    """The model of one engine, its assistant if there is one, its processor, and the calls that wait."""

    def __init__(self, config: EngineConfig, options: TransformersOptions, thinking: ThinkingSwitch) -> None:
        """Load everything. Raises transformers' errors."""
        self._config, self._options, self._thinking = config, options, thinking
        source = {"revision": options.revision, "trust_remote_code": options.trust_remote_code}
        self._processor = AutoProcessor.from_pretrained(os.path.expanduser(config.model), **source)
        self.tokenizer = self._processor.tokenizer
        self.tokenizer.padding_side = "left"
        self.tokenizer.pad_token = self.tokenizer.pad_token or self.tokenizer.eos_token
        self._assistant = self._assistant_processor = None
        with PROCESS_STATE, quiet_transformers():
            attention = ATTENTION_FUNCTION if config.attention else options.attn_implementation
            self._model = _load(config.model, options, attention, **source)
            if options.assistant_model is not None:
                self._assistant = _load(options.assistant_model, options, attention)
        self._eos_token_ids = reset_generation_config(self._model)
        if self._assistant is not None and options.assistant_model is not None:
            # The checkpoint's own end token would end the drafts of a call with `ignore_eos`.
            reset_generation_config(self._assistant)
            self._assistant.generation_config.num_assistant_tokens = options.num_assistant_tokens
            own = AutoProcessor.from_pretrained(os.path.expanduser(options.assistant_model))
            if own.image_processor.to_dict() != self._processor.image_processor.to_dict():
                self._assistant_processor = own
        limit = getattr(self._model.config.get_text_config(), "max_position_embeddings", None)
        self._context = int(options.max_model_len or limit or 1 << 30)
        """Tokens of prompt and answer."""
        self._waiting: list[Request] = []
        """The calls without an answer."""
        self.is_closed = False
        """Set by the engine: a running batch ends at its next token."""

    def add(self, request: Request) -> None:
        """Let a call wait, so that calls of the same moment share a batch."""
        self._waiting.append(request)

    def answer(self, request: Request) -> Call:
        """Return the answer to a call. If no earlier batch has answered it, it is answered now, together with waiting
        calls that can share its batch. Raises a `SampleError`."""
        if request.result is None:
            self._waiting = [each for each in self._waiting if not each.is_done]
            key = request.batch_key()
            batch = [request, *(each for each in self._waiting if each is not request and each.batch_key() == key)]
            # An assistant model drafts for one call at a time.
            batch = batch[: 1 if self._assistant is not None else self._options.batch_size]
            for each, result in zip(batch, self._generate_or_split(batch), strict=True):
                each.result = result
            self._waiting = [each for each in self._waiting if each.result is None]
        if isinstance(request.result, SampleError):
            raise request.result
        assert request.result is not None
        return request.result

    def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        """Return the last part of the thinking that fits the context, and the number of dropped tokens. Raises
        `PromptTooLong`."""
        rest = self._inputs([replace(prompt, messages=without_thinking(prompt, thinking))])["input_ids"].shape[1]
        remedy = f"Raise {self._config.side}_max_model_len."
        space = space_for_thinking(prompt, self._config.model, self._context, rest, sampling.max_tokens, remedy)
        return end_of(self.tokenizer, thinking, space)

    def _inputs(self, prompts: list[Prompt], **more: Any) -> Inputs:
        try:
            inputs = build_inputs(self._processor, prompts, self._thinking, **more)
        except MaiError:
            raise
        except Exception as error:
            raise UnreadableImage(
                f"{prompts[0].key}: image and text could not be prepared for {self._config.model} "
                f"({error_text(error)}). Check the document's image."
            ) from error
        if (length := inputs["input_ids"].shape[1]) >= self._context:
            raise PromptTooLong(
                f"{prompts[0].key}: the prompt has {length} tokens, and the context of {self._config.model} has "
                f"{self._context}. Raise {self._config.side}_max_model_len if the model can take more.",
                self._context,
                length,
            )
        return inputs

    def _generate_or_split(self, batch: list[Request]) -> list[Call | SampleError]:
        """Return a call or an error per request. A batch that fails, most often because memory is short, runs in
        halves."""
        try:
            return [*self._generate(batch)]
        except SampleError as error:
            failed = error
        except Exception as error:  # it is not kept, because it would keep the batch's tensors in memory
            failed = SampleError(
                f"{batch[0].prompt.key}: transformers failed on this request to {self._config.model} "
                f"({error_text(error)}). If memory is short, lower {self._config.side}_batch_size."
            )
        if len(batch) == 1:
            return [failed]
        torch.cuda.empty_cache()
        half = len(batch) // 2
        return [*self._generate_or_split(batch[:half]), *self._generate_or_split(batch[half:])]

    def _generate(self, batch: list[Request]) -> list[Call]:
        """Return one call per request.

        `generate` has one token limit for the whole batch: the space that the context leaves after the shortest prompt.
        The rows of longer prompts are cut afterwards, to the space after their own prompt.
        """
        if batch[0].is_scoring_call:
            return [self._score(batch[0])]
        steps = Steps(lambda: [self.is_closed or request.is_done for request in batch])
        sampling = batch[0].sampling
        inputs = self._inputs([request.prompt for request in batch])
        lengths = inputs["attention_mask"].sum(1).tolist()
        max_new_tokens = min(sampling.max_tokens, self._context - min(lengths))
        # An assistant's drafts are checked many at a time, so there is no step for each token.
        has_logprobs = batch[0].prompt.logprobs and self._assistant is None and self.tokenizer.is_fast
        processors: list[Any] = [steps.see_logits] if has_logprobs else []
        if sampling.repetition_penalty != 1.0:
            processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
        # As an argument (`stop_strings`), an assistant would need the tokenizer too.
        stops = [StopStringCriteria(self.tokenizer, list(sampling.stop))] if sampling.stop else []
        with contextlib.ExitStack() as stack:
            passes: list[int] = []
            if self._assistant is not None:
                passes = stack.enter_context(self._assisted(batch[0].prompt, inputs))
                stack.enter_context(quiet_transformers())  # its own call of the assistant is deprecated in its eyes
            if sampling.seed is not None and batch[0].is_seeded:
                stack.enter_context(PROCESS_STATE)
                torch.manual_seed(sampling.seed)
            stack.enter_context(torch.inference_mode())
            output = self._model.generate(
                **on_device(inputs, self._model),
                **decoding(sampling, max_new_tokens, self._end_tokens(sampling), self.tokenizer),
                logits_processor=processors,
                stopping_criteria=[steps.see_token, *stops],
                assistant_model=self._assistant,
            )
        calls = []
        for number, (request, length, ids) in enumerate(zip(batch, lengths, output.tolist(), strict=True)):
            row = ids[max(lengths) :][: self._context - length]
            call = self._to_call(request, ids[max(lengths) - length : max(lengths)], row, steps, number)
            if passes:
                # The first pass reads the prompt and a draft, every later one the last accepted token and a draft. Each
                # pass adds one token of the target's own to the accepted ones. If an end token was drafted,
                # transformers counts it as the target's own.
                proposed, accepted = sum(passes) - length - (len(passes) - 1), max(0, len(row) - len(passes))
                call = replace(call, proposed_tokens=proposed, accepted_tokens=accepted, target_calls=len(passes))
            calls.append(call)
        return calls

    def _score(self, request: Request) -> Call:
        """Return a call without output: one forward pass, with the attention to a text of the prompt."""
        prompt, attention = request.prompt, request.prompt.attention
        assert attention is not None
        steps = Steps(lambda: [])
        inputs = self._inputs([prompt], return_offsets_mapping=True)
        offsets, shown = inputs.pop("offset_mapping")[0].tolist(), shown_text(self._processor, prompt, self._thinking)
        begin, texts = find_in_prompt(offsets, shown, prompt.messages[-1], attention.text)
        weights = tuple(read_attention(self._model, inputs, attention.layer, begin, len(texts)))
        call = self._to_call(request, inputs["input_ids"][0].tolist(), [], steps)
        return replace(call, attention=TokenWeights(texts, weights))

    def _assisted(self, prompt: Prompt, inputs: Inputs) -> contextlib.AbstractContextManager[list[int]]:
        images = images_of(inputs) if self._options.assistant_images else {}
        if images and self._assistant_processor is not None:
            images = images_of(build_inputs(self._assistant_processor, [prompt], self._thinking))
        return assisted_call(self._model, self._assistant, images)

    def _end_tokens(self, sampling: Sampling) -> list[int]:
        return [] if sampling.ignore_eos else self._eos_token_ids

    def _to_call(self, request: Request, prompt_ids: list[int], row: list[int], steps: Steps, number: int = 0) -> Call:
        """Return the call of row `number` of a batch. It ends with its first end-of-sequence token; padding follows."""
        ends = [count for count, token in enumerate(row, 1) if token in self._end_tokens(request.sampling)]
        tokens, text, is_cut = cut_at_stop(row[: min(ends, default=None)], self.tokenizer, request.sampling.stop)
        is_stopped = is_cut or bool(ends)
        shows_marks = request.prompt.native or self._thinking.has_special_marks
        if shows_marks and not is_cut:
            text = self.tokenizer.decode([token for token in tokens if token not in self._eos_token_ids])
        logprobs = None
        if steps.logprobs:
            values = torch.cat([step[number] for step in steps.logprobs[: len(tokens)]]).tolist()
            logprobs = TokenLogprobs(texts_of_output(tokens, self.tokenizer), tuple(values))
        image_token_id = getattr(self._processor, "image_token_id", None)
        call = Call(
            key=request.prompt.key,
            text=text if is_stopped else text.rstrip("\ufffd"),  # the limit may cut a character in two
            finish_reason="stop" if is_stopped else "length",
            prompt_tokens=len(prompt_ids),
            cached_tokens=0,
            output_tokens=len(tokens),
            queued_s=steps.began_at - request.submitted_at,
            ttft_s=None if steps.first_token_at is None else steps.first_token_at - request.submitted_at,
            total_s=time.perf_counter() - request.submitted_at,
            image_tokens=None if image_token_id is None else prompt_ids.count(image_token_id),
            logprobs=logprobs,
        )
        return with_thinking(call, request.prompt, self.tokenizer.decode(prompt_ids[-8:]))


def _load(path: str, options: TransformersOptions, attention: str | None, **source: Any) -> Any:
    """Return the model of a checkpoint, ready for inference. `attention`: its attention function."""
    return AutoModelForImageTextToText.from_pretrained(
        os.path.expanduser(path),
        dtype=options.dtype,
        attn_implementation=attention,
        device_map=device_of(options),
        **source,
    ).eval()
