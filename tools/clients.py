# /// script
# requires-python = ">=3.11"
# dependencies = ["openai", "litellm", "langchain-openai", "pydantic-ai-slim[openai]", "llm", "inspect-ai",
#                 "guidellm[vision]>=0.8,<0.9"] # the options of guidellm change
# ///
"""Ask `lmms-eval-mai serve --pair demo` with real clients: .venv/bin/uv run tools/clients.py

uv installs the newest clients in an environment of their own, from UV_DEFAULT_INDEX. The server, vLLM and lmms-eval
are those of `.venv`. Prints a line for each check. The exit code is 1 if a check failed.
"""

import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import chdir
from functools import partial
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

os.environ["OPENAI_BASE_URL"] = "http://127.0.0.1:8765/v1"  # of the server that is started
os.environ["OPENAI_API_KEY"] = "none"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else litellm waits for GitHub
os.environ["LLM_USER_PATH"] = "."

import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ContentImage, ContentText, get_model
from langchain_openai import ChatOpenAI
from litellm import completion
from openai import BadRequestError, OpenAI
from pydantic_ai import Agent, BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel

URL = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
ROOT = Path(__file__).resolve().parents[1]
BIN, PICTURE = ROOT / ".venv" / "bin", ROOT / "docs" / "shapes.png"
TOKENIZER = ROOT / "lmms_eval_mai" / "pairs" / "demo" / "small"
COUNT, ROW = "How many cells hold a red shape?", "What is in row 2, column 1?"  # the small model thinks about COUNT
ANSWERS = {COUNT: "2", ROW: "red diamond", f"{COUNT}\nA. 1\nB. 2\nC. 3\nD. 4": "B"}
RIGHT: list[bool] = []


def check(client: str, asked: str, ask: Callable[[], object], expected: object) -> None:
    """Print whether the client gets what is expected. Its version is that of this environment, or of `.venv`."""
    try:
        found = ask()
    except Exception as error:  # every error of a client is a result
        found = f"{type(error).__name__}: {error}"
    RIGHT.append(found == expected)
    paths = [*sys.path, *map(str, ROOT.glob(".venv/lib/python*/site-packages"))]
    version = next(one.version for one in distributions(path=paths) if one.name in (client, f"{client}-cpu"))
    result = "ok" if RIGHT[-1] else f"FAILED: {' '.join(str(found).split())[:300]} instead of {expected}"
    print(f"{client} {version}: {asked}: {result}", flush=True)


def questions(client: str, reply: Callable[[str, bool], Any], order: str = "") -> None:
    """Ask all questions, without and with a stream."""
    for stream in (False, True):
        answers = partial(lambda stream: ["".join(texts(reply(text, stream))).strip() for text in ANSWERS], stream)
        check(client, f"questions{order}{', streamed' if stream else ''}", answers, list(ANSWERS.values()))


def texts(reply: Any) -> list[str]:
    """Return the text of a reply, or of each part of a stream. The part with the usage has no choice."""
    if isinstance(reply, str):
        return [reply]
    if hasattr(reply, "choices"):
        return [reply.choices[0].message.content]
    return [part.choices[0].delta.content or "" for part in reply if part.choices]


def messages(question: str, order: int = 1) -> Any:
    """Return a chat with the text before the picture, as in most examples of the clients, or after it (order -1)."""
    url = f"data:image/png;base64,{base64.b64encode(PICTURE.read_bytes()).decode()}"
    parts = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": url}}]
    return [{"role": "user", "content": parts[::order]}]


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr[-400:]
    return done.stdout


def reply_of(client: str, question: str, stream: bool) -> Any:
    """Ask as the users of the client do. Returns the text, or a reply or a stream for `texts`."""
    match client:
        case "litellm":
            return completion("openai/demo", messages(question), stream=stream)
        case "langchain-openai":
            model, chat = ChatOpenAI(model="demo"), messages(question)
            return "".join(part.text for part in model.stream(chat)) if stream else model.invoke(chat).text
        case "pydantic-ai-slim":
            agent = Agent(OpenAIChatModel("demo"))
            prompt = [question, BinaryContent(PICTURE.read_bytes(), media_type="image/png")]
            return agent.run_stream_sync(prompt).get_output() if stream else agent.run_sync(prompt).output
        case "llm":
            model = {"model_id": "demo", "model_name": "demo", "api_base": f"{URL}/v1", "vision": True}
            Path("extra-openai-models.yaml").write_text(json.dumps([model]))
            return run("llm", "-m", "demo", "-a", PICTURE, question, *([] if stream else ["--no-stream"]))
        case "inspect_ai":
            chat = [ChatMessageUser(content=[ContentText(text=question), ContentImage(image=str(PICTURE))])]
            model = get_model("openai-api/openai/demo", stream=stream)
            (log,) = inspect_ai.eval(inspect_ai.Task([Sample(chat)]), model, display="none")
            return log.samples[0].output.completion if log.samples else str(log.error)


def check_openai() -> None:
    client = OpenAI().with_options(timeout=60, max_retries=0)

    def ask(question: str, order: int = -1, **options: Any) -> Any:
        return client.chat.completions.create(model="demo", messages=messages(question, order), **options)

    def refused(field: str, question: str, **options: Any) -> Any:
        try:
            return texts(ask(question, **options))
        except BadRequestError as error:
            return getattr(error, field)

    exits = partial(lambda stops: len({ask(COUNT, stop=stop).mai["exit"] for stop in stops}), (None, ["\n"]))
    too_long = "context_length_exceeded"
    questions("openai", lambda text, stream: ask(text, stream=stream), ", the picture first")
    questions("openai", lambda text, stream: ask(text, 1, stream=stream))
    check("openai", "first part of a stream", lambda: texts(ask(ROW, stream=True))[0], "red diamond")
    check("openai", "exits with and without stop", exits, 1)
    check("openai", "models.retrieve", lambda: client.models.retrieve("demo").id, "demo")
    check("openai", "n=2", lambda: refused("param", ROW, n=2), "n")
    check("openai", "long prompt", lambda: refused("code", "word " * 4000), too_long)
    check("openai", "long prompt, streamed", lambda: refused("code", "word " * 4000, stream=True), too_long)


def run_guidellm() -> list[str]:
    rows = [json.dumps({"prompt": question, "image": str(PICTURE)}) for question in ANSWERS]
    Path("data.jsonl").write_text("\n".join(rows))
    options = f"""--backend kind=openai_http,target={URL} --tokenizer kind=huggingface_auto,model={TOKENIZER}
        --data kind=json_file,path=data.jsonl --data-preprocessor kind=encode_media --output kind=json,path=report.json
        --profile kind=synchronous --constraint kind=max_requests,count={len(rows)} --disable-progress"""
    run("guidellm", "run", *options.split())
    (found,) = json.loads(Path("report.json").read_text())["benchmarks"]
    for name in ("time_to_first_token_ms", "request_latency"):
        print(f"  Median {name}: {found['metrics'][name]['successful']['median']:.3f}")
    requests = found["requests"]["successful"] + found["requests"]["errored"]
    return [request["output"] or request["info"]["error"] for request in requests]


def run_vllm() -> str:
    bench = "import argparse, vllm.benchmarks.serve as bench; bench.add_cli_args(parser := argparse.ArgumentParser()); "
    bench += "bench.main(parser.parse_args())"  # because the command `vllm` does not start with the CPU build
    options = f"""--backend openai-chat --base-url {URL} --endpoint /v1/chat/completions --model demo --num-prompts 8
        --tokenizer {TOKENIZER} --dataset-name random-mm --random-mm-bucket-config {{(96,96,1):1.0}} --max-concurrency 1
        --random-input-len 20 --random-output-len 20 --percentile-metrics ttft,e2el"""
    lines = [" ".join(line.split()) for line in run(BIN / "python", "-c", bench, *options.split()).splitlines()]
    print(*(f"  {line}" for line in lines if line.startswith("Median")), sep="\n")
    return next(line for line in lines if line.startswith("Successful"))


def run_lmms_eval(model: str) -> float:
    options = f"--tasks shapes_s --limit 8 --output_path {model} --model {model} --model_args model_version=demo"
    run(BIN / "lmms-eval", *f"{options},base_url={URL}/v1,api_key=none".split())
    (file,) = Path(model).rglob("*_results.json")
    return json.loads(file.read_text())["results"]["shapes_s"]["exact_match,none"]


def is_ready() -> bool:
    try:
        return urllib.request.urlopen(f"{URL}/health").status == 200
    except OSError:  # it does not listen yet, or has the status 503
        return False


if __name__ == "__main__":
    serve = [BIN / "lmms-eval-mai", "serve", "--pair", "demo", "--port", URL.rpartition(":")[2], "--request_timeout=60"]
    with tempfile.TemporaryDirectory() as folder, chdir(folder), open("server.log", "w") as log:
        server = subprocess.Popen(serve, stdout=log, stderr=log)
        try:
            while not is_ready():
                assert server.poll() is None, Path("server.log").read_text()
                time.sleep(1)
            check_openai()
            for client in ("litellm", "langchain-openai", "pydantic-ai-slim", "llm", "inspect_ai"):
                questions(client, partial(reply_of, client))
            check("guidellm", "questions, one at a time", run_guidellm, list(ANSWERS.values()))
            check("vllm", "bench serve, 8 requests, one at a time", run_vllm, "Successful requests: 8")
            for model in ("openai", "async_openai"):
                check("lmms_eval", f"score of 8 documents with {model}", partial(run_lmms_eval, model), 1.0)
        finally:
            server.terminate()
            server.wait()
    sys.exit(not all(RIGHT))
