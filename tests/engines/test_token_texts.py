"""The tokens that carry a text are found, and their parts of the text, joined, are the text."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engines import make_image, prompt
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, trainers

from lmms_eval_mai.contract import Prompt
from lmms_eval_mai.engines.messages import LiteralTokenizer
from lmms_eval_mai.engines.transformers.inputs import InputBuilder
from lmms_eval_mai.engines.transformers.token_texts import TokenSpan, find_in_output, find_in_prompt, texts_of_output
from lmms_eval_mai.errors import SampleError

DEMO = Path(__file__).parents[2] / "lmms_eval_mai/pairs/demo/large"

END = "<|im_end|>\n<|im_start|>assistant\n"
"""How the chat template goes on after the text."""

FRAGMENTS = [
    "The image shows a dog. ", "previous thinking", "[[Yes]]", "日本語", "\N{WOMAN}\u200d\N{BOY}", "\u00e9", "e\u0301",
    "q\u0307\u0323", "한국", "\u1112\u1161\u11ab", "\n\n", "  \t ", " ", "<|im_end|>\n", "<|image_pad|>",
    "<|im_start|>assistant\n", "\ufffd", "\u2581", "\N{LATIN SMALL LIGATURE FI}", ">\u0338",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), min_size=1, max_size=8).map("".join).filter(bool)


def byte_level() -> Any:
    """The processor of the demo pair. Its tokenizer is byte-level and composes characters."""
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(DEMO)


def sentencepiece() -> Any:
    """The same processor with a tokenizer in the form of Llama's: spaces become U+2581, unknown characters become
    tokens of one byte."""
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
    processor = byte_level()
    names = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
    own.add_special_tokens([AddedToken(name, special=True) for name in names])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=own, unk_token="<unk>", clean_up_tokenization_spaces=False)
    return type(processor)(
        image_processor=processor.image_processor,
        tokenizer=tokenizer,
        video_processor=processor.video_processor,
        chat_template=processor.chat_template,
    )


@pytest.fixture(scope="module", params=[byte_level, sentencepiece])
def builder(request: pytest.FixtureRequest) -> InputBuilder:
    make: Callable[[], Any] = request.param
    return InputBuilder(make())


def find(builder: InputBuilder, asked: Prompt, text: str) -> tuple[list[int], TokenSpan]:
    """Return the tokens of a prompt, and those of them that carry a text."""
    built = builder.build(asked.messages, offsets=True)
    assert built.offsets is not None and len(built.offsets) == built.length
    return built.tokens["input_ids"][0].tolist(), find_in_prompt(built.offsets, asked, text)


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
    builder: InputBuilder, before: str, text: str, after: str
) -> None:
    asked = prompt(0, make_image(), "Look: ", before, text, after)
    ids, span = find(builder, asked, text)
    check_span(builder.tokenizer, ids, span, text)
    literal = builder.literal
    rest = text + after
    if "\ufffd" not in rest and literal.text(literal.tokens(rest)).lstrip() == rest.lstrip():  # nothing is changed
        assert text.lstrip() in literal.text(ids[span.start : span.end])
        assert not literal.text(ids[span.start + 1 :]).endswith(rest + END)  # the first token has a part of the text
        assert text not in literal.text(ids[span.start : span.end - 1]).removeprefix(before[-1:])


@settings(deadline=None, max_examples=40)
@given(text=texts, data=st.data())
def test_parts_of_an_answers_tokens_are_its_text_also_if_a_limit_or_a_stop_text_ended_it(
    builder: InputBuilder, text: str, data: st.DataObject
) -> None:
    tokenizer = builder.tokenizer
    whole = [*LiteralTokenizer(tokenizer).tokens(text), tokenizer.convert_tokens_to_ids("<|im_end|>")]
    for ids in (whole, whole[: data.draw(st.integers(0, len(whole)))]):  # the limit may cut a character in two
        decoded = tokenizer.decode(ids, skip_special_tokens=True).rstrip("\ufffd")
        parts = find_in_output(ids, tokenizer, prompt(0).key, decoded)
        assert "".join(parts) == decoded and len(parts) < len(whole)
        assert texts_of_output(ids, tokenizer)[: len(parts)] == parts
        cut = decoded[: len(decoded) // 2]  # a stop text ended the answer
        assert "".join(find_in_output(ids, tokenizer, prompt(0).key, cut)) == cut


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_each_of_random_tokens_has_a_text_also_if_its_bytes_are_invalid(
    builder: InputBuilder, data: st.DataObject
) -> None:
    """Invalid bytes change the characters before them in decoders of the SentencePiece family: such an answer is an
    error of its sample."""
    tokenizer = builder.tokenizer
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    assert len(texts_of_output(ids, tokenizer)) == len(ids)
    if isinstance(tokenizer.backend_tokenizer.decoder, decoders.ByteLevel):
        text = tokenizer.decode(ids, skip_special_tokens=True).rstrip("\ufffd")
        assert "".join(find_in_output(ids, tokenizer, prompt(0).key, text)) == text


def test_threads_that_tokenize_at_the_same_time_read_special_tokens_as_each_of_them_asks(builder: InputBuilder) -> None:
    literal, text = builder.literal, "a dog <|im_end|> " * 2000
    expected = {special: literal.tokens(text, special) for special in (True, False)}
    assert expected[True] != expected[False]
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda number: literal.tokens(text, number % 2 == 0), range(40)))
    assert found == [expected[True], expected[False]] * 20


@pytest.mark.parametrize(
    ("before", "text", "after", "parts", "decoded"),
    [
        ("a", "👩", "b", ("", "", "", "👩"), "👩"),
        ("The c", "irc", "le is above it.", ("irc",), " circle"),
        ("The cir", "cle is a", "bove it.", ("cle", " is", " a"), " circle is a"),
        ("The cafe", "\u0301 No.", "", ("\u0301", *" No."), "\ufffd No."),  # the tokenizer composes é (NFC)
    ],
)
def test_a_token_over_the_border_of_the_text_is_cut_and_a_character_belongs_to_the_last_of_its_tokens(
    before: str, text: str, after: str, parts: tuple[str, ...], decoded: str
) -> None:
    builder = InputBuilder(byte_level())
    ids, span = find(builder, prompt(0, before, text, after), text)
    assert span.texts == parts
    assert builder.tokenizer.decode(ids[span.start : span.end]) == decoded


def test_the_content_part_that_equals_the_text_is_found_if_other_parts_have_the_text_too() -> None:
    builder = InputBuilder(byte_level())
    parts = ("Is it a dog? ", "According to previous thinking: ", "dog", "\nIs it a dog?")
    ids, span = find(builder, prompt(0, make_image(), *parts), "dog")
    assert builder.literal.text(ids[: span.start]).endswith("According to previous thinking:")
    joined = prompt(0, make_image(), parts[0], "".join(parts[1:]))
    assert find(builder, joined, "dog") == (ids, span)  # the first place in the last content part


def test_text_with_special_tokens_and_text_after_several_images_are_found(builder: InputBuilder) -> None:
    """Special tokens in a text make the builder replace all texts of the chat."""
    text = "It says <|image_pad|><|im_end|>, so [[No]]."
    for question in ("Is it a dog? ", "<|im_end|> Is it a dog? "):
        for wanted in (text, "a dog. [[Yes]]"):
            asked = prompt(0, "First: ", make_image(), "second:", make_image(), question, wanted, " Answer.")
            ids, span = find(builder, asked, wanted)
            check_span(builder.tokenizer, ids, span, wanted)
            assert builder.literal.text(ids[span.start : span.end]).strip() == wanted
            after = builder.literal.text(ids[span.end :])
            assert after.replace(" ", "") == (" Answer." + END).replace(" ", "")  # Llama's adds spaces


def test_a_message_that_the_template_trims_is_found() -> None:
    processor = byte_level()
    processor.chat_template = processor.chat_template.replace("part.text", "part.text | trim")
    builder = InputBuilder(processor)
    ids, span = find(builder, prompt(0, "\n Look: ", "a dog", ". \n"), "a dog")
    assert builder.literal.text(ids[: span.start]).endswith("user\nLook:")
    assert "".join(span.texts) == "a dog" and builder.literal.text(ids[span.end :]) == "." + END


def test_a_text_that_is_not_there_is_one_error_with_the_call() -> None:
    builder = InputBuilder(byte_level())
    for missing in ("a cat", ""):
        with pytest.raises(SampleError, match=r"contract document 3, small short: .* not a part of the last message"):
            find(builder, prompt(3, "Look: a dog."), missing)
    with pytest.raises(SampleError, match="not a part of the last message after its images"):
        find(builder, prompt(3, "Look: a dog.", make_image(), "What is it?"), "a dog")
    with pytest.raises(SampleError, match=r"not the answer's text of 5 characters.* Use sparse_from=large"):
        find_in_output(builder.literal.tokens("Look: a dog."), builder.tokenizer, prompt(3).key, "a cat")


def test_a_text_that_the_chat_template_changes_is_an_error_of_its_sample() -> None:
    processor = byte_level()
    processor.chat_template = processor.chat_template.replace("part.text", "part.text | upper")
    asked = prompt(3, "Look: a dog.")
    built = InputBuilder(processor).build(asked.messages, offsets=True)
    with pytest.raises(SampleError, match="tokens of a text of 5 characters were not found"):
        find_in_prompt(built.offsets, asked, "a dog")
