"""The server on the demo pair: its answers are those of an lmms-eval run."""

import asyncio
import base64
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import openai
from support.serving import address_in

from lmms_eval_mai.paper.prompts import instruction
from lmms_eval_mai.plugin import task_dir

if TYPE_CHECKING:
    from support.processes import Command

QUESTIONS = 60


def messages_of(doc: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the chat of a document as lmms-eval's model `async_openai` sends it."""
    file = io.BytesIO()
    doc["image"].save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    options = [f"{letter}. {doc[letter]}" for letter in "ABCD" if doc[letter]]
    text = "\n".join([doc["question"], *options, instruction("S", "letter" if options else "word")])
    image = {"type": "image_url", "image_url": {"url": url}}
    return [{"role": "user", "content": [image, {"type": "text", "text": text}]}]


def test_openai_client_gets_the_answers_and_exits_of_an_lmms_eval_run(
    demo_run: Any, command: "type[Command]", tmp_path: Path
) -> None:
    import datasets

    file = str(task_dir() / "shapes" / "test.parquet")
    documents = list(datasets.load_dataset("parquet", data_files=file, split="train").select(range(QUESTIONS)))
    log = tmp_path / "log"
    arguments = ["serve", "--pair", "demo", "--port", "0", "--model_args", "dtype=float32,max_open_samples=16"]
    process = command(tmp_path, log, *arguments, name="lmms-eval-mai", engines=True)

    async def ask_all() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=f"{address_in(log)}/v1", api_key="none") as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model="demo",
                        messages=messages_of(doc),  # type: ignore[arg-type]
                        temperature=0,
                        max_tokens=4096,
                        extra_body={"mai": {"benchmark": "shapes"}},
                    )
                    for doc in documents
                )
            )

    try:
        replies = asyncio.run(ask_all())
    finally:
        process.process.terminate()
        code, text = process.end()
    assert code == 0, text
    samples = demo_run[1][:QUESTIONS]
    assert [sample["doc_id"] for sample in samples] == list(range(QUESTIONS))
    assert [[reply.choices[0].message.content] for reply in replies] == [one["filtered_resps"] for one in samples]
    assert [reply.mai["exit"] for reply in replies] == [one["token_counts"][0]["exit"] for one in samples]
    output = [sum(call["output_tokens"] for call in one["token_counts"][0]["calls"]) for one in samples]
    assert [reply.usage.completion_tokens for reply in replies] == output
