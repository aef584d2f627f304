"""The tokens that carry a text are found, and their parts of the text, joined, are the text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import make_image, prompt

from lmms_eval_mai.engines.special_tokens import LiteralTokenizer
from lmms_eval_mai.engines.token_texts import TokenReader, TokenSpan
from lmms_eval_mai.errors import ArgumentError, SampleError

DEMO = Path(__file__).parents[2] / "lmms_eval_mai/pairs/demo/large"

END = "<|im_end|>\nassistant\n"
"""How a chat template goes on after the text."""

FRAGMENTS = [
    "The image shows a dog. ", "previous thinking", "[[Yes]]", "日本語", "\N{WOMAN}\u200d\N{BOY}", "\u00e9", "e\u0301",
    "q\u0307\u0323", "한국", "\u1112\u1161\u11ab", "\n\n", "  \t ", " ", "<|im_end|>\n", "<|image_pad|>",
    "<|im_start|>assistant\n", "\ufffd", "\u2581", "\N{LATIN SMALL LIGATURE FI}", ">\u0338",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), min_size=1, max_size=8).map("".join).filter(bool)


def byte_level() -> Any:
    """The tokenizer of the demo pair: byte-level, composes characters, a few hundred tokens."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO)


def sentencepiece() -> Any:
    """A tokenizer in the form of Llama's: spaces become U+2581, unknown characters become tokens of one byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    own.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=["<unk>"], show_progress=False)
    own.train_from_iterator(["The image shows a dog. previous thinking: [[Yes]] é Answer."] * 2, trainer)
    state = json.loads(own.to_str())
    for byte in range(256):
        state["model"]["vocab"].setdefault(f"<0x{byte:02X}>", len(state["model"]["vocab"]))
    own = Tokenizer.from_str(json.dumps(state))
    own.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    own.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>", "<|image_pad|>")])
    return PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>", clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    make: Callable[[], Any] = request.param
    return make()


def prompt_tokens(tokenizer: Any, content: str, between: int = 30) -> list[int]:
    """Return the tokens of a chat with an image of some tokens, whose text is tokenized literally, as engines do."""
    special = tokenizer.convert_tokens_to_ids
    literal = LiteralTokenizer(tokenizer)
    head = [special("<|im_start|>"), *literal.tokens("user\n"), *[special("<|image_pad|>")] * between]
    return [*head, *literal.tokens(content), *literal.tokens(END, special=True)]


def check_span(tokenizer: Any, ids: list[int], span: TokenSpan, text: str) -> None:
    """Compare with decoding each token alone, where tokens have whole characters."""
    assert "".join(span.texts) == text
    assert 0 <= span.start < span.end <= len(ids)
    for position in range(span.start + 1, span.end - 1):
        alone = tokenizer.convert_ids_to_tokens(ids[position])
        if alone.isascii() and alone.isalnum():
            assert span.texts[position - span.start] == alone


@settings(deadline=None, max_examples=40)
@given(before=texts, text=texts, after=texts)
def test_parts_of_the_tokens_are_the_text_and_all_other_tokens_have_no_part_of_it(
    tokenizer: Any, before: str, text: str, after: str
) -> None:
    ids = prompt_tokens(tokenizer, before + text + after)
    asked = prompt(0, make_image(), before, text, after)
    span = TokenReader(tokenizer).find_in_prompt(ids, asked, text)
    check_span(tokenizer, ids, span, text)
    literal = LiteralTokenizer(tokenizer)
    rest = text + after
    if "\ufffd" not in rest and literal.text(literal.tokens(rest)).lstrip() == rest.lstrip():  # nothing is changed
        assert text.lstrip() in literal.text(ids[span.start : span.end])
        assert not literal.text(ids[span.start + 1 :]).endswith(rest + END)  # the first token has a part of the text
        assert text not in literal.text(ids[span.start : span.end - 1]).removeprefix(before[-1:])


@settings(deadline=None, max_examples=40)
@given(text=texts)
def test_parts_of_an_answers_tokens_are_its_text(tokenizer: Any, text: str) -> None:
    ids = [*LiteralTokenizer(tokenizer).tokens(text), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    decoded = tokenizer.decode(ids, skip_special_tokens=True)
    span = TokenReader(tokenizer).find_in_output(ids, prompt(0).key, decoded)
    assert "".join(span.texts) == decoded and span.start == 0 and span.end < len(ids)
    cut = decoded[: len(decoded) // 2]  # a stop text ended the answer
    assert "".join(TokenReader(tokenizer).find_in_output(ids, prompt(0).key, cut).texts) == cut


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_parts_of_random_tokens_are_their_decoded_text_also_if_its_bytes_are_invalid(
    tokenizer: Any, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    text = tokenizer.decode(ids, skip_special_tokens=True)
    for shown in (text, text.rstrip("\ufffd")):
        assert "".join(TokenReader(tokenizer).find_in_output(ids, prompt(0).key, shown).texts) == shown


def test_an_answer_that_the_token_limit_ends_inside_a_character_is_found_if_it_was_decoded_token_by_token(
    tokenizer: Any,
) -> None:
    """As vLLM decodes. Decoding all tokens at once would replace the characters before the cut one too."""
    from tokenizers.decoders import DecodeStream

    ids = LiteralTokenizer(tokenizer).tokens("a 日本語 👩")
    for number in range(1, len(ids) + 1):
        stream = DecodeStream(skip_special_tokens=True)
        text = "".join(stream.step(tokenizer.backend_tokenizer, id) or "" for id in ids[:number])
        assert "".join(TokenReader(tokenizer).find_in_output(ids[:number], prompt(0).key, text).texts) == text


def test_a_character_over_several_tokens_belongs_to_the_last_of_them() -> None:
    tokenizer = byte_level()
    ids = prompt_tokens(tokenizer, "a👩b")
    span = TokenReader(tokenizer).find_in_prompt(ids, prompt(0, "a", "👩", "b"), "👩")
    assert span.texts == ("", "", "", "👩")
    assert tokenizer.decode(ids[span.start : span.end]) == "👩"


def test_a_token_over_the_border_of_the_text_is_cut() -> None:
    tokenizer = byte_level()
    words = "The circle is above it."
    reader = TokenReader(tokenizer)
    ids = LiteralTokenizer(tokenizer).tokens(words)
    number = reader.find_in_prompt(ids, prompt(0, words), words).texts.index(" circle")
    for before, part, parts in (("The c", "irc", ("irc",)), ("The cir", "cle is a", ("cle", " is", " a"))):
        span = reader.find_in_prompt(ids, prompt(0, before, part, words[len(before + part) :]), part)
        assert (span.start, span.texts) == (number, parts)


def test_the_content_part_that_equals_the_text_is_found_if_other_parts_have_the_text_too() -> None:
    tokenizer = byte_level()
    parts = ("Is it a dog? ", "According to previous thinking: ", "dog", "\nIs it a dog?")
    ids = prompt_tokens(tokenizer, "".join(parts))
    reader = TokenReader(tokenizer)
    span = reader.find_in_prompt(ids, prompt(0, make_image(), *parts), "dog")
    literal = LiteralTokenizer(tokenizer)
    assert literal.text(ids[: span.start]).endswith("According to previous thinking:")
    joined = prompt(0, make_image(), parts[0], "".join(parts[1:]))
    assert reader.find_in_prompt(ids, joined, "dog") == span  # the first place in the last content part


def test_a_message_that_the_template_trims_is_found() -> None:
    tokenizer = byte_level()
    ids = prompt_tokens(tokenizer, "Look: a dog.")
    span = TokenReader(tokenizer).find_in_prompt(ids, prompt(0, "\n Look: ", "a dog", ". \n"), "a dog")
    assert "".join(span.texts) == "a dog"


def test_a_text_that_is_not_there_is_one_error_with_the_call() -> None:
    tokenizer = byte_level()
    reader = TokenReader(tokenizer)
    ids = prompt_tokens(tokenizer, "Look: a dog.")
    for missing in ("a cat", ""):
        with pytest.raises(SampleError, match=r"contract document 3, small short: .* not a part of the last message"):
            reader.find_in_prompt(ids, prompt(3, "Look: a dog."), missing)
    with pytest.raises(SampleError, match="tokens of a text of 5 characters were not found"):
        reader.find_in_prompt(ids, prompt(3, "Look: a cat."), "a cat")
    with pytest.raises(SampleError, match=r"not the answer's text of 5 characters.* Use sparse_from=large"):
        reader.find_in_output(ids, prompt(3).key, "a cat")


def test_a_tokenizer_whose_tokens_cannot_be_read_is_refused() -> None:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    own = Tokenizer(models.WordPiece({"[UNK]": 0, "dog": 1}, unk_token="[UNK]"))
    own.decoder = decoders.WordPiece()
    with pytest.raises(ArgumentError, match="cannot be read one by one"):
        TokenReader(PreTrainedTokenizerFast(tokenizer_object=own, unk_token="[UNK]"))


class Counting:
    """A tokenizer that counts the tokens that it is asked for."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def convert_ids_to_tokens(self, ids: list[int]) -> Any:
        self.asked += len(ids)
        return self._tokenizer.convert_ids_to_tokens(ids)


def test_the_tokenizer_is_asked_once_for_each_different_token(tokenizer: Any) -> None:
    """A time would depend on the machine."""
    counting = Counting(tokenizer)
    reader = TokenReader(counting)
    text = "The image shows a dog. 日本語 " * 50
    ids = prompt_tokens(tokenizer, text)
    for _ in range(2):
        assert "".join(reader.find_in_prompt(ids, prompt(0, text), text).texts) == text
    assert 0 < counting.asked <= len(set(ids))
