"""`lmms-eval-mai doctor`: checks the installation, and what a given lmms-eval command would start and where."""

import asyncio
import dataclasses
import importlib
import importlib.metadata
import sys
from collections.abc import Iterator

from lmms_eval_mai.cli import command_line, machine, tasks
from lmms_eval_mai.cli.command_line import Command
from lmms_eval_mai.cli.findings import Finding, error_text
from lmms_eval_mai.cli.hub import Hub, check_model
from lmms_eval_mai.contract import Engine, EngineConfig
from lmms_eval_mai.engines.build import build
from lmms_eval_mai.run.config import Config
from lmms_eval_mai.run.pair import sparse_of


def examine(command: Command, hub: Hub) -> Iterator[Finding]:
    """Return the findings one by one, because some checks take seconds.

    The arguments come first: a typo in them is then shown before the slow imports. The model arguments of other models
    are not checked.
    """
    ours = command_line.is_ours(command.model)
    model_args = command.model_args
    if model_args is None and command.model is not None:
        model_args = ""
    config = None
    if ours and model_args is not None:
        config, finding = command_line.check_arguments(model_args)
        yield finding
    if ours and command.gen_kwargs:
        yield command_line.check_decoding(command.gen_kwargs, config)
    yield from _packages()
    yield _devices()
    yield _hub(hub)
    yield from command_line.check_options(command)
    yield from tasks.check(command, hub, config.mode if config is not None else "cascade")
    yield from check_engines(config, hub)
    if config is not None or (ours and model_args is None):
        yield from machine.plan(config)


def _packages() -> Iterator[Finding]:
    from lmms_eval_mai.engines.vllm.environment import INSTALL

    supported = (3, 11) <= sys.version_info < (3, 13)
    version = sys.version.split()[0]
    text = version if supported else f"{version}. Use Python 3.11 or 3.12."
    yield Finding("python", "ok" if supported else "PROBLEM", text)
    remedies = {
        "lmms_eval": "Run `pip install lmms-eval`.",
        "torch": "Run `pip install torch`.",
        "transformers": "Run `pip install transformers`, if you want engine=transformers.",
        "aiohttp": "Run `pip install aiohttp`, if you want endpoints (small=http://...).",
        "vllm": f"engine=vllm needs vllm. {INSTALL}",
    }
    for name, remedy in remedies.items():
        try:
            module = importlib.import_module(name)
        except Exception as error:
            text = f"cannot be imported ({error_text(error)}). {remedy}"
            yield Finding(name, "PROBLEM" if name in ("lmms_eval", "torch") else "optional", text)
        else:
            version = getattr(module, "__version__", None) or importlib.metadata.version(name.replace("_", "-"))
            yield Finding(name, "ok", str(version))


def _devices() -> Finding:
    try:
        return Finding("devices", "ok", machine.devices())
    except Exception as error:
        text = f"cannot be checked ({error_text(error).rstrip('.')}). Run `pip install torch psutil`."
        return Finding("devices", "PROBLEM", text)


def _hub(hub: Hub) -> Finding:
    if hub.absence is None:
        return Finding("hub", "ok", f"{hub.address} answers")
    text = f"{hub.absence}. Only models and data sets in the cache can be used."
    if hub.absence.endswith("reached"):
        return Finding("hub", "warning", f"{text} Set HF_HUB_OFFLINE=1, or a run retries for minutes.")
    return Finding("hub", "ok", text)


def check_engines(config: Config | None, hub: Hub) -> Iterator[Finding]:
    """Check the engines that a run with this configuration would use. None: no arguments were given, or they are
    wrong."""
    engines = config.engines() if config is not None else ()
    found: list[Finding] = []
    for engine in engines:
        assert config is not None
        finding = _engine(config, engine, hub)
        if finding.text not in [earlier.text for earlier in found]:  # an argument of both engines is wrong
            yield finding
        found.append(finding)


def _engine(config: Config, engine_config: EngineConfig, hub: Hub) -> Finding:
    """Check one engine without starting it. An endpoint is asked whether it answers."""
    if engine_config.engine == "openai":
        engine_config = dataclasses.replace(engine_config, arguments={**engine_config.arguments, "retry_for": 0})
    try:
        check_model(engine_config, hub)
        engine = build(engine_config, config.other(engine_config))
        engine.validate()
        if engine_config.attention:
            sparse_of(config, engine)
        if engine_config.engine == "openai":
            asyncio.run(_start_and_close(engine))
        text = f"{engine_config.engine} {engine_config.model}: {engine.describe()}"
        return Finding(engine_config.side, "ok", text)
    except Exception as error:
        return Finding(engine_config.side, "PROBLEM", error_text(error))


async def _start_and_close(engine: Engine) -> None:
    await engine.start()
    await engine.close()
