"""`lmms-eval-mai serve`: the cascade behind an OpenAI-compatible API."""

import argparse
import contextlib
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from lmms_eval_mai.cli.terminal import log_to_terminal, values_of
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable
from lmms_eval_mai.run import presets

if TYPE_CHECKING:
    from lmms_eval_mai.serve.limits import Settings

PACKAGES = ("starlette", "pydantic", "uvicorn", "prometheus_client")
LOCAL = ("127.0.0.1", "::1", "localhost")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", help="a named pair, or the path of a YAML file, as in the model arguments")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="the port to listen on (default: 8000)")
    parser.add_argument("--model_args", default="", help="more model arguments (format as in lmms-eval)")
    parser.add_argument(
        "--gen_kwargs", default="", help="decoding arguments for requests without their own (format as in lmms-eval)"
    )
    parser.add_argument(
        "--served-name", metavar="NAME", help="the name of the model in requests (default: the name of the pair)"
    )
    parser.add_argument(
        "--api-key-env", metavar="VARIABLE", help="the environment variable with the key that requests must have"
    )
    parser.add_argument(
        "--max-queue",
        type=int,
        default=256,
        metavar="N",
        help="how many requests may wait, besides those that max_open_samples allows at the same time (default: 256)",
    )
    parser.add_argument(
        "--request-timeout", type=float, default=600, metavar="S", help="seconds for one request (default: 600)"
    )
    parser.add_argument(
        "--max-body-mib", type=float, default=20, metavar="MIB", help="the largest body of a request (default: 20)"
    )
    parser.add_argument(
        "--max-image-megapixels",
        type=float,
        default=64,
        metavar="MP",
        help="the largest size of all images of a request together (default: 64)",
    )


def main(given: argparse.Namespace) -> int:
    """Run the command. Returns the exit code: 0 after SIGTERM, 143 if the server was not ready then, and 130 after
    Ctrl-C. Raises a `MaiError`."""
    log_to_terminal()
    try:
        with _sigterm_raises():
            return 130 if _serve(given) == signal.SIGINT else 0
    except Terminated:
        print("lmms-eval-mai: stopped by SIGTERM before the server was ready.", file=sys.stderr)
        return 128 + signal.SIGTERM


class Terminated(BaseException):
    """Raised in the main thread when SIGTERM arrives while the server does not answer requests."""


@contextlib.contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Raise `Terminated` inside the block at the first SIGTERM. So the engines are stopped if they are still starting.
    Without a handler, the process would be killed at once, and its engines only some time later."""
    before = signal.getsignal(signal.SIGTERM)

    def stop(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the engines must be stopped in peace
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _serve(given: argparse.Namespace) -> int:
    """Serve until a signal, and return its number. Raises a `MaiError`."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineUnavailable(
            f"lmms-eval-mai serve needs {' and '.join(missing)}. Install them with pip install 'lmms-eval-mai[serve]'."
        )
    from loguru import logger

    from lmms_eval_mai.run.config import parse
    from lmms_eval_mai.serve.server import bind, run
    from lmms_eval_mai.serve.service import Service

    model_args = values_of("--model_args", given.model_args)
    pair = given.pair or model_args.get("pair")
    arguments = {"journal": "off", **model_args, **({} if pair is None else {"pair": pair})}
    settings = settings_of(given, pair if pair is not None or "small" in arguments else presets.DEFAULT)
    if settings.api_key is None and given.host not in LOCAL:
        logger.warning(
            f"mai_cascade: --host {given.host} lets other machines ask this server, and no key is needed. Give "
            "--api-key-env to require one."
        )
    service = Service(parse(arguments), values_of("--gen_kwargs", given.gen_kwargs), settings)
    with bind(given.host, given.port) as bound:
        return run(service, bound)


def settings_of(given: argparse.Namespace, pair: str | None) -> "Settings":
    """Return the settings of the server. `pair`: the name of the pair, or None. Raises `ArgumentError`."""
    from lmms_eval_mai.serve.limits import Settings

    for name in ("request_timeout", "max_body_mib", "max_image_megapixels"):
        if not 0 < getattr(given, name) < 1e6:
            option = "--" + name.replace("_", "-")
            raise ArgumentError(f"{option} {getattr(given, name)} is invalid: expected a number above 0.")
    if given.max_queue < 0:
        raise ArgumentError(f"--max-queue {given.max_queue} is invalid: expected a whole number of at least 0.")
    key = None
    if given.api_key_env is not None and not (key := os.environ.get(given.api_key_env, "").strip()):
        raise ArgumentError(f"--api-key-env {given.api_key_env}: this environment variable is not set, or it is empty.")
    return Settings(
        model_name=given.served_name or (Path(str(pair)).stem if pair is not None else "mai_cascade"),
        max_queue=given.max_queue,
        request_timeout=given.request_timeout,
        max_body_bytes=int(given.max_body_mib * 2**20),
        max_pixels=int(given.max_image_megapixels * 1_000_000),
        api_key=key,
        # A web page may let a name of its own point to this machine, and ask a server here that needs no key.
        allowed_hosts=("127.0.0.1", "[::1]", "localhost") if given.host in LOCAL and key is None else ("*",),
    )
