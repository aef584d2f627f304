"""Start the engines and answer chat requests over HTTP, as OpenAI's API does (docs/serve.md).

SIGTERM and Ctrl-C stop the server after the requests in flight are answered.
"""

import argparse
import os
import signal
from pathlib import Path

from lmms_eval_mai.cli import log_to_terminal, tell
from lmms_eval_mai.engines.arguments import read
from lmms_eval_mai.errors import ArgumentError, EngineUnavailable
from lmms_eval_mai.harness.command import SignalReceived, signals_raise
from lmms_eval_mai.method import files
from lmms_eval_mai.method.methods import METHODS
from lmms_eval_mai.run import pairs
from lmms_eval_mai.serve import Settings
from lmms_eval_mai.user_input import values_of

LOCAL = ("127.0.0.1", "::1", "localhost")
OPTIONS = ("max_queue", "request_timeout", "max_body_mib", "max_image_megapixels")
"""The settings that are options."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pair", help="a named pair, or the path of a YAML file, as in the model arguments")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, default=8000, help="the port to listen on (default: 8000)")
    parser.add_argument("--model_args", default="", help="more model arguments (format as in lmms-eval)")
    parser.add_argument("--gen_kwargs", default="", help="decoding arguments for requests without their own")
    parser.add_argument("--served_name", metavar="NAME", help="the model's name in requests (default: the pair's)")
    parser.add_argument("--methods", nargs="+", default=[], metavar="FILE", help="methods of your own, as YAML files")
    parser.add_argument("--api_key_env", metavar="VARIABLE", help="the variable with the key that requests must have")
    for name in OPTIONS:
        field = Settings.model_fields[name]
        text = f"{field.description} (default: {field.default:g})"
        parser.add_argument(f"--{name}", default=field.default, metavar="N", help=text)


def main(given: argparse.Namespace) -> int:
    """Return 0 after SIGTERM, or 143 if the server was not ready then."""
    log_to_terminal()
    from loguru import logger

    from lmms_eval_mai.run.config import parse

    try:
        from lmms_eval_mai.serve.server import bind, serve_until_stopped
        from lmms_eval_mai.serve.service import Service
    except ModuleNotFoundError as error:
        raise EngineUnavailable(f"{error.name} is not installed. Run pip install 'lmms-eval-mai[serve]'.") from None

    model_args = values_of("--model_args", given.model_args)
    pair = given.pair or model_args.get("pair")
    arguments = {"store": "off", **model_args, **({} if pair is None else {"pair": pair})}
    settings = settings_of(given, pair if pair is not None or "small" in arguments else pairs.DEFAULT)
    if settings.api_key is None and given.host not in LOCAL:
        logger.warning(
            f"mai_cascade: --host {given.host} lets other machines ask this server, and no key is needed. Give "
            "--api_key_env to require one."
        )
    service = Service(parse(arguments), values_of("--gen_kwargs", given.gen_kwargs), settings)
    try:
        # Without a handler, SIGTERM would end the process at once, and the engines only some time later.
        with signals_raise(signal.SIGTERM), bind(given.host, given.port) as bound:
            serve_until_stopped(service, bound)
    except SignalReceived:
        if not service.is_ready:
            tell("stopped by SIGTERM before the server was ready.")
            return 128 + signal.SIGTERM
    return 0


def settings_of(given: argparse.Namespace, pair: str | None) -> Settings:
    """Return the settings of the server. `pair`: the name of the pair, or None. Raises `ArgumentError`."""
    key = None
    if given.api_key_env is not None and not (key := os.environ.get(given.api_key_env, "").strip()):
        raise ArgumentError(f"--api_key_env {given.api_key_env}: this environment variable is not set, or it is empty.")
    values = {
        "model_name": given.served_name or (Path(str(pair)).stem if pair is not None else "mai_cascade"),
        "api_key": key,
        "methods": METHODS | {method.name: method for method in map(files.load, given.methods)},
        # A web page may let a name of its own point to this machine, and ask a server here that needs no key.
        "local_hosts_only": given.host in LOCAL and key is None,
    }
    return read(Settings, values | {name: getattr(given, name) for name in OPTIONS})
