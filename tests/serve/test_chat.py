"""Replies of the server to chats: how a chat is asked, and the shape of the reply, at once and in parts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pair import EXITS, written
from support.serving import Running, chat, chat_records, image_url, scripted, serving, user

from lmms_eval_mai.method.methods import FULL_RT, MAI_CONFIDENCE, steps_of
from lmms_eval_mai.method.prompts import instruction
from lmms_eval_mai.run.calibration import Calibrated, Calibration
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.serve.chat_request import NOTHING, OTHER_REPLY, ChatRequest
from lmms_eval_mai.serve.question import question_of

PICK = "Which is red?\nA. the circle\nB. the square"
STORY = {"model": "pair", "messages": [{"role": "user", "content": "Tell a story."}]}


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(**scripted(tmp_path_factory.mktemp("scripts"), 100), log_prompts=True) as running:
        yield running


def prompts_of(reply: dict[str, Any]) -> dict[str, list[str]]:
    """Return the content of the last message of each call."""
    return {f"{call['side']} {call['prompt']}": call["messages"][-1]["content"] for call in reply["mai"]["calls"]}


def test_reply_has_the_answer_the_sums_of_tokens_and_the_trace(api: Running) -> None:
    for _ in EXITS:
        first = api.service.asked
        reply = api.ask()
        number = first % 3
        (choice,) = reply["choices"]
        assert choice["message"]["content"] == f"answer {first}" and choice["finish_reason"] == "stop"
        assert choice["message"].get("reasoning_content", "").startswith(f"I see {first}." if number else "")
        assert ("reasoning_content" in choice["message"]) == bool(number)
        calls = reply["mai"]["calls"]
        assert reply["mai"]["exit"] == EXITS[number] and len(calls) == 2 + number
        output = sum(call["output_tokens"] for call in calls)
        assert reply["usage"] == {
            "prompt_tokens": 100 * len(calls),
            "completion_tokens": output,
            "total_tokens": 100 * len(calls) + output,
            "prompt_tokens_details": {"cached_tokens": 32 * len(calls)},
            "completion_tokens_details": {"reasoning_tokens": 50 if number else 0},
        }
        assert reply["object"] == "chat.completion" and reply["model"] == "pair"


def chunks_of(text: str) -> list[dict[str, Any]]:
    """Return the chunks of a streamed reply. The last one of a reply that is not complete is the error."""
    lines = text.removesuffix("data: [DONE]\n\n").split("\n\n")[:-1]
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert all(line.startswith("data: ") for line in lines)
    assert ("error" in chunks[-1]) is not text.endswith("data: [DONE]\n\n")
    return chunks


def test_stream_has_the_thinking_the_answer_and_the_trace_and_begins_with_a_text(api: Running) -> None:
    for _ in EXITS:
        number = api.service.asked
        response = api.post(chat(stream=True, stream_options={"include_usage": True}))
        assert response.headers["content-type"].startswith("text/event-stream")
        chunks = chunks_of(response.text)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
        thinking = [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta]
        assert "".join(delta.get("content", "") for delta in deltas) == f"answer {number}"
        assert len(thinking) == (number % 3 > 0) and all(text.startswith(f"I see {number}.") for text in thinking)
        assert all(delta.get("content") or delta.get("reasoning_content") for delta in deltas[:-1])  # the first one too
        assert [delta.get("role") for delta in deltas] == ["assistant", *[None] * (len(deltas) - 1)]
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-2:] == [None, "stop"]
        assert chunks[-2]["mai"]["exit"] == EXITS[number % 3]
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["prompt_tokens"] == 100 * (2 + number % 3)
        assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.slow
def test_error_before_the_first_text_has_its_status_and_a_later_one_is_a_part_of_the_stream(tmp_path: Path) -> None:
    made = chat_records(3)
    for record in (*made["small"], *made["large"]):
        if (record["doc_id"], record["prompt"]) in ((1, "think"), (2, "transfer")):
            record["fault"] = "error"
    with serving(**written(tmp_path, made)) as server:
        server.ask()
        assert server.refused(chat(stream=True))[0] == 500
        first, last = chunks_of(server.post(chat(stream=True)).text)
        assert "reasoning_content" in first["choices"][0]["delta"] and last["error"]["code"] == "sample_failed"
        metrics = server.client.get("/metrics").text
        assert 'mai_errors_total{error="SampleError",side="small"} 1.0' in metrics
        assert 'mai_replies_total{status="500"} 2.0' in metrics and 'mai_replies_total{status="200"} 1.0' in metrics


@pytest.mark.slow
def test_openai_client_reads_replies_and_streams(api: Running) -> None:
    import openai

    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["pair"]
        assert client.models.retrieve("pair").created > 1e9
        number = api.service.asked
        reply = client.chat.completions.create(**chat(extra_body={"mai": {"think": "E"}}))
        assert reply.choices[0].message.content == f"answer {number}"
        assert reply.mai["exit"] == EXITS[number % 3]  # type: ignore[attr-defined]
        stream = client.chat.completions.create(**chat(), stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == f"answer {number + 1}"


WORD, LETTER = instruction("S", "word"), instruction("S", "letter")
OPTIONS = {"options": ["the circle", "the square"]}


@pytest.mark.parametrize(
    ("text", "mai", "question", "ending"),
    [
        ("Is it red?", {}, "Is it red?\n", WORD),
        (PICK, {}, f"{PICK}\n", LETTER),
        (PICK, {"kind": "word"}, f"{PICK}\n", WORD),
        # The options of the field mai are written below the question, unless they are there already.
        ("Which is red?", OPTIONS, f"{PICK}\n", LETTER),
        (PICK, OPTIONS, f"{PICK}\n", LETTER),
        # The instruction of a task is not sent twice.
        (f"{PICK}\n{LETTER}", {}, f"{PICK}\n", LETTER),
        (f"Which is red?\n{WORD}", OPTIONS, f"{PICK}\n", LETTER),
    ],
)
def test_question_with_options_is_asked_for_a_letter_and_any_other_for_a_word(
    text: str, mai: dict[str, Any], question: str, ending: str, api: Running
) -> None:
    reply = api.ask(text, mai=mai)
    assert prompts_of(reply)["large simple"] == ["<image 8x6>", question, ending]
    assert reply["mai"]["kind"] == ("letter" if ending == LETTER else "word")


def test_field_mai_chooses_the_method_the_thinking_and_the_trace(api: Running) -> None:
    explained = api.ask(seed=3, temperature=0.5, mai={"method": "full_rt", "think": "E"})
    assert explained["mai"]["options"] == {"seed": 3, "temperature": 0.5, "think": "E"}
    assert explained["mai"]["steps"] == steps_of(FULL_RT)
    assert list(prompts_of(explained)) == ["small explain", "large transfer"]
    assert prompts_of(explained)["small explain"][-1] == instruction("E", "word")
    small = api.ask(mai={"method": "small"})["mai"]
    assert small["exit"] == "small" and "large" not in small  # the model that is not asked
    assert list(prompts_of(api.ask(mai={"method": "large"}))) == ["large simple"]
    assert list(prompts_of(api.ask(mai={"method": "small", "think": "R"}))) == ["small think"]
    exit = EXITS[api.service.asked % 3]
    assert api.ask(mai={"trace": False})["mai"] == {"method": "mai", "kind": "word", "exit": exit}


@pytest.mark.slow
def test_a_request_chooses_a_method_and_its_threshold(api: Running, tmp_path: Path) -> None:
    assert api.refused(chat(mai={"method": "mai_confidence"}))[0] == 400  # without log-probabilities
    with serving(**scripted(tmp_path, 12, answer_logprob=-0.1)) as server:  # a probability of 0.905
        for method, least, exits in (
            ("mai_confidence", 0.9, ["confident"] * 3),
            ("mai_confidence", 0.95, ["transfer", "agree_think", "transfer"]),
            ("mai_confidence_direct", 0.95, ["transfer"] * 3),
        ):
            chosen = {"method": method, "min_confidence": least}
            assert [server.ask(mai=chosen)["mai"]["exit"] for _ in EXITS] == exits
        assert [server.ask()["mai"]["exit"] for _ in EXITS] == list(EXITS)  # the method of the server
    file = tmp_path / "file.json"
    Calibration({"mai_confidence": Calibrated(MAI_CONFIDENCE, {"pope": 0.9}, "", {"pope": 1})}, {}).write(file)
    own = {"method": "mai_confidence", "min_confidence": str(file)}
    with serving(**scripted(tmp_path, 3, answer_logprob=-0.1), **own) as server:
        assert server.ask()["mai"]["exit"] == "confident"
        assert server.refused(chat(mai={"method": "own_thinking"}))[1]["param"] == "mai.min_confidence"
        assert server.ask(mai={"method": "own_thinking", "min_confidence": 0.8})["mai"]["exit"] == "confident"
        assert server.ask(mai={"method": "mai"})["mai"]["exit"] == EXITS[2]


def test_earlier_turns_come_before_the_question(api: Running) -> None:
    turns = [
        {"role": "developer", "content": "Be short."},
        user("What is it?", image_url((5, 4))),
        {"role": "assistant", "content": "A dog.", "refusal": None, "reasoning_content": "Hm."},
        user("And this?", image_url((7, 4), "JPEG")),
    ]
    assert api.post(chat() | {"messages": turns}).json()["mai"]["calls"][0]["messages"] == [
        {"role": "system", "content": ["Be short."]},
        {"role": "user", "content": ["<image 5x4>", "What is it?"]},
        {"role": "assistant", "content": ["A dog."]},
        {"role": "user", "content": ["<image 7x4>", "And this?\n", instruction("S", "word")]},
    ]


@pytest.mark.parametrize(
    ("parts", "shown"),
    [
        (["Q", "R", 1, 2], ["<image 1x6>", "<image 2x6>", "QR\n"]),
        (["Q", 1, " "], ["<image 1x6>", "Q "]),
        ([1, "Q", 2], ["<image 1x6>", "Q", "<image 2x6>"]),
        ([f"{PICK}\n{LETTER}", 1], ["<image 1x6>", f"{PICK}\n"]),
    ],
)
def test_images_that_come_after_the_whole_text_are_put_before_it(
    parts: list[str | int], shown: list[str], api: Running
) -> None:
    """A number is an image of this width."""
    content = [user(part)["content"][0] if isinstance(part, str) else user("", image_url((part, 6)))["content"][0]
               for part in parts]  # fmt: skip
    turns = [{"role": "user", "content": content}, {"role": "assistant", "content": None}]
    reply = api.post(chat() | {"messages": [*turns, {"role": "user", "content": content}]}).json()
    first, _, last = reply["mai"]["calls"][0]["messages"]
    is_choice = PICK in shown[-1]
    assert last["content"] == [*shown, LETTER if is_choice else WORD]
    assert is_choice or first["content"] == [*shown[:-1], shown[-1].rstrip("\n")]


def test_unknown_fields_and_values_that_ask_for_nothing_are_ignored(api: Running) -> None:
    number = api.service.asked
    turn = user("Hm?", image_url().replace(",", ",\r\n")) | {"name": "x"}
    turn["content"][0] |= {"cache_control": {"type": "ephemeral"}, "uuid": "a"}
    fields = {name: (values or NOTHING)[0] for name, values in OTHER_REPLY.items()}
    fields |= {"user": "x", "metadata": {"a": 1}, "min_tokens": 1, "stop": None}
    fields |= {"stream": True, "stream_options": {"include_usage": None, "continuous_usage_stats": True}}
    chunks = chunks_of(api.post(chat() | {"messages": [turn]} | fields).text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == f"answer {number}"


def test_free_chat_is_answered_by_the_large_model_as_it_is(api: Running) -> None:
    number = api.service.asked
    reply = api.post(STORY | {"max_tokens": 1000}).json()
    assert reply["choices"][0]["message"]["content"] == f"Once upon a time [[{number}]]"
    assert prompts_of(reply) == {"large task": ["Tell a story."]}
    described = api.post(chat("Describe this image in detail.") | {"mai": {"kind": "free"}}).json()
    assert prompts_of(described) == {"large task": ["<image 8x6>", "Describe this image in detail."]}
    for one in (reply, described):
        assert [one["mai"][name] for name in ("method", "kind", "exit")] == ["free", "free", "free"]
    assert api.refused(chat(mai={"kind": "free", "think": "R"}))[1]["param"] == "mai.kind"
    for fields in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"mai": {"kind": "word"}}):
        assert api.post(STORY | fields).json()["mai"]["method"] == "mai"


def decoding(config: dict[str, Any], gen_kwargs: dict[str, Any], **fields: Any) -> Any:
    """Return how a server with these arguments decodes a request with these fields."""
    models = {"engine": "scripted", "small": "small.jsonl", "large": "large.jsonl"}
    request = ChatRequest.model_validate_json(json.dumps(chat(**fields)))
    return question_of(request, parse(models | config), gen_kwargs).sample.sampling


@pytest.mark.parametrize(
    ("config", "gen_kwargs", "fields", "limits"),
    [
        ({}, {}, {}, [4096] * 6),
        ({}, {}, {"max_tokens": 9}, [9, 9, 9, 9, 4096, 4096]),
        ({"max_new_tokens": 512}, {}, {"max_completion_tokens": 900, "max_tokens": 9}, [512] * 6),
        ({}, {"max_new_tokens": 100}, {"max_tokens": 900}, [900, 900, 900, 900, 100, 100]),
        # A model alone that thinks by itself answers in the same call.
        ({"think": "native"}, {}, {"max_tokens": 9, "mai": {"method": "large"}}, [9, 9, 9, 9, 4096, 9]),
    ],
)
def test_token_limit_of_a_request_applies_to_the_answers_and_not_to_the_thinking(
    config: dict[str, Any], gen_kwargs: dict[str, Any], fields: dict[str, Any], limits: list[int]
) -> None:
    sampling = decoding(config, gen_kwargs, **fields)
    prompts = ("simple", "task", "stage2", "transfer", "think", "native")
    assert [sampling[prompt].max_tokens for prompt in prompts] == limits


def test_stop_of_a_request_ends_the_answers_and_that_of_the_server_the_thinking_too() -> None:
    for own in ((), ("END",)):
        stops = {prompt: found.stop for prompt, found in decoding({}, {"stop": list(own)}, stop="\n").items()}
        answers, thinking = ("simple", "task", "stage2", "transfer"), ("explain", "think", "native")
        assert stops == dict.fromkeys(answers, ("\n",)) | dict.fromkeys(thinking, own)


def test_decoding_arguments_of_a_request_replace_those_of_the_server() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 7, "stop": "END", "presence_penalty": 1.0}
    found = decoding({}, {"temperature": 1, "min_p": 0.1}, **fields, frequency_penalty=None)["simple"]
    expected = fields | {"stop": ("END",), "min_p": 0.1}
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.slow
def test_server_with_one_model_answers_every_chat_with_it(tmp_path: Path) -> None:
    with serving(engine="scripted", method="large", large=scripted(tmp_path)["large"]) as server:
        assert server.ask()["mai"]["exit"] == "large"
        assert server.post(STORY).json()["mai"]["exit"] == "free"
        assert server.refused(chat(mai={"method": "mai"}))[1]["param"] == "mai.method"
