"""Replies of the server to chats: how a chat is asked, and the shape of the reply."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.serving import EXITS, Running, chat, image_url, scripted, serving, user, written

from lmms_eval_mai.contract import Sampling
from lmms_eval_mai.paper.prompts import instruction, stage2
from lmms_eval_mai.run.calibration import Calibration
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.serve.errors import RequestError
from lmms_eval_mai.serve.question import decoding_of
from lmms_eval_mai.serve.schema import ChatRequest

PICK = "Which is red?\nA. the circle\nB. the square"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(**scripted(tmp_path_factory.mktemp("scripts"), 100), log_prompts=True) as running:
        yield running


def prompts_of(reply: dict[str, Any]) -> dict[str, list[str]]:
    """Return the content of the last message of each call."""
    return {f"{call['side']} {call['stage']}": call["prompt"][-1]["content"] for call in reply["mai"]["calls"]}


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
            "prompt_tokens_details": {"cached_tokens": 10 * len(calls)},
            "completion_tokens_details": {"reasoning_tokens": 20 if number else 0},
        }
        assert [answer["agree"] for answer in reply["mai"]["answers"]] == [[True], [False, True], [False, False]][
            number
        ]
        assert reply["object"] == "chat.completion" and reply["model"] == "pair"


def test_a_request_chooses_the_first_check(tmp_path: Path) -> None:
    with serving(**scripted(tmp_path, 9, answer_logprob=-0.1)) as running:  # a probability of 0.905
        chosen = {"verify": "confidence", "min_confidence": 0.9}
        assert [running.ask(mai=chosen)["mai"]["exit"] for _ in EXITS] == ["confident"] * 3
        exits = [running.ask(mai={**chosen, "min_confidence": 0.95})["mai"]["exit"] for _ in EXITS]
        assert exits == ["agree_think" if exit == "agree_think" else "transfer" for exit in EXITS]
        assert [running.ask()["mai"]["exit"] for _ in EXITS] == list(EXITS)  # the rule of the server
        for wrong in ({"min_confidence": 0.9}, {"verify": "both", "mode": "large"}):
            status, error = running.refused(chat(mai=wrong))
            assert status == 400 and "has no effect" in error["message"]
            assert error["param"] == f"mai.{next(iter(wrong))}"


def test_the_first_check_of_a_request_needs_probabilities_and_a_threshold_of_its_rule(
    api: Running, tmp_path: Path
) -> None:
    status, error = api.refused(chat(mai={"verify": "confidence"}))
    assert status == 400 and error["param"] == "mai.verify" and "did not report it" in error["message"]
    file = tmp_path / "file.json"
    Calibration("confidence", 0.9, {}, "", "small", "large", {"pope": 1}, ()).write(file)
    chosen = {"verify": "confidence", "min_confidence": str(file)}
    with serving(**scripted(tmp_path, 9, answer_logprob=-0.1), **chosen) as running:
        assert running.ask()["mai"]["exit"] == "confident"
        status, error = running.refused(chat(mai={"verify": "both"}))
        assert status == 400 and "The threshold of this server is that of mai.verify=confidence" in error["message"]
        assert running.ask(mai={"verify": "both", "min_confidence": 0.9})["mai"]["exit"] in EXITS


@pytest.mark.slow
def test_openai_client_reads_a_reply_and_a_stream(api: Running) -> None:
    import openai

    with openai.OpenAI(base_url=f"{api.url}/v1", api_key="none") as client:
        assert [model.id for model in client.models.list()] == ["pair"]
        assert client.models.retrieve("pair").object == "model"
        number = api.service.asked
        body = chat(extra_body={"mai": {"think": "E"}})
        reply = client.chat.completions.create(**body)
        assert reply.choices[0].message.content == f"answer {number}"
        assert reply.usage is not None and reply.usage.prompt_tokens >= 200
        assert reply.mai["exit"] == EXITS[number % 3]  # type: ignore[attr-defined]
        with pytest.raises(openai.NotFoundError, match="not served here"):
            client.chat.completions.create(model="other", messages=body["messages"])
        number = api.service.asked
        stream = client.chat.completions.create(**chat(), stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == f"answer {number}"


WORD, LETTER = instruction("S", "word"), instruction("S", "letter")
OPTIONS = {"options": ["the circle", "the square"]}


@pytest.mark.parametrize(
    ("text", "mai", "question", "ending"),
    [
        ("Is it red?", {}, "Is it red?\n", WORD),
        (PICK, {}, f"{PICK}\n", LETTER),
        (PICK, {"kind": "word"}, f"{PICK}\n", WORD),
        ("Which?\n(A) a dog\n(B) a cat", {}, "Which?\n(A) a dog\n(B) a cat\n", LETTER),
        ("Which?\n A) a\n B) b\n\n", {}, "Which?\n A) a\n B) b\n\n", LETTER),
        ("A. only one option", {}, "A. only one option\n", WORD),
        ("B. no\nC. first letter", {}, "B. no\nC. first letter\n", WORD),
        ("A. a\nC. no B", {}, "A. a\nC. no B\n", WORD),
        ("A.nospace\nB.nospace", {}, "A.nospace\nB.nospace\n", WORD),
        # The options of the field mai are written below the question, unless they are there already.
        ("Which is red?", OPTIONS, f"{PICK}\n", LETTER),
        (PICK, OPTIONS, f"{PICK}\n", LETTER),
        # The instruction of a task is not sent twice.
        (f"{PICK}\n{LETTER}", {}, f"{PICK}\n", LETTER),
        (f"Which is red?\n{WORD}", OPTIONS, f"{PICK}\n", LETTER),
        (stage2("Hm.", "word"), {}, f"{stage2('Hm.', 'word')}\n", WORD),  # this is not an instruction
    ],
)
def test_question_with_options_is_asked_for_a_letter_and_any_other_for_a_word(
    text: str, mai: dict[str, Any], question: str, ending: str, api: Running
) -> None:
    reply = api.ask(text, mai=mai)
    assert prompts_of(reply)["large short"] == ["<image 8x6>", question, ending]
    assert reply["mai"]["kind"] == ("letter" if ending == LETTER else "word")


def test_field_mai_chooses_the_mode_the_thinking_and_the_kind(api: Running) -> None:
    explained = api.ask(mai={"mode": "transfer", "think": "E"})
    assert list(prompts_of(explained)) == ["small think", "large transfer"]
    assert prompts_of(explained)["small think"][-1] == instruction("E", "word")
    assert api.ask(mai={"mode": "small"})["mai"]["exit"] == "small"
    assert list(prompts_of(api.ask(mai={"mode": "large"}))) == ["large short"]
    assert list(prompts_of(api.ask(mai={"mode": "small", "think": "R"}))) == ["small think"]
    as_a_task = f"Is it red?\n{instruction('E', 'word')}"
    explained = api.ask(as_a_task, mai={"mode": "transfer"})
    assert prompts_of(explained)["small think"] == ["<image 8x6>", "Is it red?\n", instruction("E", "word")]


def test_earlier_turns_come_before_the_question(api: Running) -> None:
    turns = [
        {"role": "developer", "content": "Be short."},
        user("What is it?", image_url((5, 4))),
        {"role": "assistant", "content": "A dog.", "refusal": None, "reasoning_content": "Hm."},
        user("And this?", image_url((7, 4), "JPEG")),
    ]
    reply = api.post(chat() | {"messages": turns}).json()
    assert reply["mai"]["calls"][0]["prompt"] == [
        {"role": "system", "content": ["Be short."]},
        {"role": "user", "content": ["<image 5x4>", "What is it?"]},
        {"role": "assistant", "content": ["A dog."]},
        {"role": "user", "content": ["<image 7x4>", "And this?\n", instruction("S", "word")]},
    ]


def test_chat_that_is_no_short_answer_question_is_answered_by_the_large_model_as_it_is(api: Running) -> None:
    story = {"model": "pair", "messages": [{"role": "user", "content": "Tell a story."}]}
    number = api.service.asked
    reply = api.post(story | {"max_tokens": 1000}).json()
    assert reply["choices"][0]["message"]["content"] == f"Once upon a time [[{number}]]"
    assert reply["mai"]["mode"] == "large" and "not a short-answer question" in reply["mai"]["note"]
    assert prompts_of(reply) == {"large task": ["Tell a story."]}
    for fields in ({"max_tokens": 5}, {"max_completion_tokens": 5}, {"mai": {"kind": "word"}}):
        asked = api.post(story | fields).json()
        assert asked["mai"]["mode"] == "cascade" and "note" not in asked["mai"]


def test_trace_false_leaves_the_calls_out(api: Running) -> None:
    exit = EXITS[api.service.asked % 3]
    assert api.ask(mai={"trace": False})["mai"] == {"mode": "cascade", "kind": "word", "exit": exit}


@pytest.mark.slow
def test_benchmark_decides_how_answers_are_parsed_and_whether_they_agree(tmp_path: Path) -> None:
    own = {"task": "chat", "stage": "short"}
    names = [None, "mmmu_val", "mmbench_en_dev", "realworldqa"]
    small = [{**own, "doc_id": number, "text": "[[The answer is B.]]"} for number in range(len(names))]
    large = [{**own, "doc_id": number, "text": "[[B]]"} for number in range(len(names))]
    for number in (4, 5):
        small.append({**own, "doc_id": number, "text": "[[red.]]"})
        small.append({**own, "doc_id": number, "text": "[[red]]", "stage": "think"})
        large.append({**own, "doc_id": number, "text": "[[red]]"})
    with serving(**written(tmp_path, small, large)) as server:
        for name in names:
            mai = {"options": ["red", "green", "blue"], **({} if name is None else {"benchmark": name})}
            found = server.ask("Which colour?", mai=mai)["mai"]
            assert found["exit"] == "agree_short" and found["answers"][0]["large"] == "B"
        assert server.ask(mai={"benchmark": "shapes"})["mai"]["exit"] == "agree_short"
        assert server.ask()["mai"]["exit"] == "agree_think"


def decoding(config: dict[str, Any], gen_kwargs: dict[str, Any], **fields: Any) -> dict[str, Sampling]:
    """Return how a server with these arguments decodes a request with these fields."""
    models = {"engine": "scripted", "small": "small.jsonl", "large": "large.jsonl"}
    return {**decoding_of(ChatRequest.model_validate(chat(**fields)), parse(models | config), gen_kwargs)}


@pytest.mark.parametrize(
    ("config", "gen_kwargs", "fields", "limits"),
    [
        ({}, {}, {}, [4096] * 4),
        ({}, {}, {"max_tokens": 9}, [9, 9, 4096, 4096]),
        ({"max_new_tokens": 512}, {}, {"max_tokens": 9}, [9, 9, 512, 512]),
        ({"max_new_tokens": 512}, {}, {"max_completion_tokens": 900, "max_tokens": 9}, [512] * 4),
        ({}, {"max_new_tokens": 100}, {"max_tokens": 900}, [900, 900, 100, 100]),
    ],
)
def test_token_limit_of_a_request_applies_to_the_short_answers_only(
    config: dict[str, Any], gen_kwargs: dict[str, Any], fields: dict[str, Any], limits: list[int]
) -> None:
    stages = decoding(config, gen_kwargs, **fields)
    assert [stages[stage].max_tokens for stage in ("short", "task", "think", "transfer")] == limits


def test_decoding_arguments_of_a_request_replace_those_of_the_server() -> None:
    fields = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "seed": 7, "stop": "END", "presence_penalty": 1.0}
    found = decoding({}, {"temperature": 1, "min_p": 0.1}, **fields)["short"]
    expected = fields | {"stop": ("END",), "min_p": 0.1}
    assert {name: getattr(found, name) for name in expected} == expected


def test_decoding_arguments_that_the_official_ones_would_replace_are_refused() -> None:
    official = {"decoding": "official", "official_decoding": {"temperature": 0.7}}
    for given in (0.7, 0):  # 0 is what a harness sends for a task of this package
        assert decoding(official, {}, temperature=given)["short"].temperature == 0.7
    with pytest.raises(RequestError, match=r"decodes with temperature=0\.7"):
        decoding(official, {}, temperature=0.2)


@pytest.mark.slow
def test_server_with_one_model_answers_every_chat_with_it(tmp_path: Path) -> None:
    arguments = scripted(tmp_path)
    with serving(engine="scripted", mode="large", large=arguments["large"]) as server:
        assert server.ask()["mai"]["exit"] == "large"
        story = {"model": "pair", "messages": [{"role": "user", "content": "Tell a story."}]}
        assert server.post(story).json()["mai"]["exit"] == "large"
        status, error = server.refused(chat(mai={"mode": "cascade"}))
        assert status == 400 and "only one model" in error["message"] and error["param"] == "mai.mode"
