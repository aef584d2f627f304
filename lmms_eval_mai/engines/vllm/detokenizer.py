"""Decodes an answer once, when it is complete. vLLM would decode every token on the event loop when it arrives.

The text is the one that vLLM's own detokenizer gives. vLLM's detokenizer adds text whenever the bytes of the tokens so
far end with a whole character. With a byte-level decoder and without invalid bytes, the parts together are the decoded
answer. If the decoded answer has a replacement character, vLLM's detokenizer decodes it again: it leaves out an
incomplete character at the end, for example.
"""

from typing import Any

from tokenizers.decoders import ByteLevel

from lmms_eval_mai.engines.vllm.internals import decode_token_by_token

REPLACEMENT_CHARACTER = "\ufffd"


class Detokenizer:
    """Decodes answers with the tokenizer of one engine."""

    def __init__(self, tokenizer: Any) -> None:
        from vllm.v1.engine.detokenizer import uses_fast_detokenizer

        self._tokenizer = tokenizer
        self.decodes_at_once = uses_fast_detokenizer(tokenizer) and isinstance(tokenizer._tokenizer.decoder, ByteLevel)
        """Whether answers are decoded here. If not, vLLM must decode them (`SamplingParams.detokenize`)."""

    def text(self, result: Any, params: Any) -> str:
        """Return the text of a finished output of vLLM. `params`: its `SamplingParams`."""
        output = result.outputs[0]
        if params.detokenize:
            text: str = output.text
            return text
        stopped = output.finish_reason == "stop"  # the last token stopped the answer and is not part of its text
        shown = list(output.token_ids[:-1] if stopped else output.token_ids)
        text = self._tokenizer._tokenizer.decode(shown, skip_special_tokens=params.skip_special_tokens)
        if REPLACEMENT_CHARACTER in text:
            text = decode_token_by_token(self._tokenizer, result.prompt_token_ids, shown, params)
        return text
