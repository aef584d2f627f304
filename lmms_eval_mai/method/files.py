"""Reads a method: a named one, or the steps in a YAML file of the user (docs/methods.md).

- ask: [large.simple, small.simple]    # at the same time
- stop: {exit: agree_short, answer: large.simple, agree: [small.simple, large.simple]}
- ask: small.think
- {ask: large.transfer, of: small.think}
- stop: {exit: transfer, answer: large.transfer}
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lmms_eval_mai.contract import PROMPTS, SIDES
from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.methods import METHODS, Ask, Method, Step, Stop, asks_of
from lmms_eval_mai.user_input import path_of, read_yaml

EXAMPLE = "for example `- ask: large.simple`, and `- stop: {exit: done, answer: large.simple}` at the end"
NAMES = tuple(f"{side}.{prompt}" for side in SIDES for prompt in PROMPTS if prompt not in ("stage2", "score"))
"""The calls that a step may ask. The other two follow from them (`walk.calls_of`)."""


def load(value: Any) -> Method:
    """Return the method of a value of `method`: a name of `METHODS`, or the path of a YAML file, whose name without
    its ending is the name of the method. Raises `ArgumentError`."""
    if isinstance(value, Method):
        return value
    if str(value) in METHODS:
        return METHODS[str(value)]
    path = path_of(str(value))
    if path.suffix not in (".yaml", ".yml"):
        raise ArgumentError(f"method={value} is unknown: choose one of {', '.join(METHODS)}, or give a YAML file.")
    method = read_steps(path.stem, read_yaml(f"method={value}", path), f"method={value}")
    if METHODS.get(path.stem, method) != method:
        raise ArgumentError(f"method={value}: {path.stem} is the name of another method. Rename the file.")
    used = {name for stop in method.stops for name in (stop.answer, stop.sure, *stop.agree)}
    for ask in method.asks:
        if ask.name not in used | {other.of for other in method.asks}:
            raise ArgumentError(f"method={value}: {ask.name} is asked, and no later step uses it. Leave it out.")
    return method


def read_steps(name: str, steps: Any, where: str) -> Method:
    """Return a method from the values of its steps. `where`: names the method in messages. Raises `ArgumentError`."""
    if not isinstance(steps, list) or not steps:
        raise ArgumentError(f"{where} must be a list of steps, {EXAMPLE}.")
    read: list[Step] = []
    for number, step in enumerate(steps, start=1):
        try:
            read.append(_step(step, [ask for earlier in read for ask in asks_of(earlier)]))
        except ValueError as error:
            raise ArgumentError(f"{where}, step {number}: {error}.") from None
    method = Method(name, tuple(read))
    if problem := _problem(method):
        raise ArgumentError(f"{where}: {problem}.")
    return method


def _problem(method: Method) -> str | None:
    """Return what is wrong with the steps as a whole. None: nothing."""
    *before, last = method.steps
    if not isinstance(last, Stop) or last.agree or last.sure:
        return "the last step must be a stop without a condition, so that every sample has an answer"
    for stop in before:
        if isinstance(stop, Stop) and not (stop.agree or stop.sure):
            return f"no sample passes the stop {stop.exit}, which has no condition: only the last stop may have none"
    task = next((ask.name for ask in method.asks if ask.prompt == "task"), None)
    if task and len(method.asks) > 1:  # runs of tasks with different prompts would not be one method
        return f"{task} is only for a method with one call: write simple, explain or think in place of task"
    for names, what in (([ask.name for ask in method.asks], "asked"), (method.exits, "an exit")):
        for name in names:
            if list(names).count(name) > 1:
                return f"{name} is {what} twice: leave one out, or give it another name"
    return None


def _step(step: Any, asked: Sequence[Ask]) -> Step:
    """Return one step. `asked`: the calls before it. Raises `ValueError`."""
    if not isinstance(step, Mapping) or not ("ask" in step) ^ ("stop" in step):
        raise ValueError(f"expected `ask` or `stop`, {EXAMPLE}")
    if "stop" in step:
        _refuse_unknown(step, ("stop",))
        return _stop(step["stop"], [ask.name for ask in asked])
    _refuse_unknown(step, ("ask", "of"))
    names = step["ask"] if isinstance(step["ask"], list) else [step["ask"]]
    thinking = [ask.name for ask in asked if PROMPTS[ask.prompt].thinks]
    if not names:
        raise ValueError("ask: [] names no call")
    asks = tuple(_ask(name, step.get("of", ""), thinking) for name in names)
    if "of" in step and not any(ask.of for ask in asks):
        raise ValueError(f"of: {step['of']} has no effect without a transfer")
    return asks[0] if len(asks) == 1 else asks


def _ask(name: Any, of: Any, thinking: Sequence[str]) -> Ask:
    if name not in NAMES:
        raise ValueError(f"ask: {name} is unknown: expected one of {', '.join(NAMES)}")
    side, _, prompt = name.partition(".")
    if prompt == "transfer" and of not in thinking:
        remedy = f"write {{ask: {name}, of: {thinking[0]}}}" if thinking else "and no earlier step asks one that thinks"
        raise ValueError(f"a transfer needs `of`, an earlier call that thinks: {remedy}")
    return Ask(side, prompt, of if prompt == "transfer" else "")


def _stop(stop: Any, asked: Collection[str]) -> Stop:
    if not isinstance(stop, Mapping) or not isinstance(stop.get("exit"), str) or not stop["exit"].isidentifier():
        raise ValueError("a stop needs `exit`, a name of letters, digits and _")
    _refuse_unknown(stop, ("exit", "answer", "agree", "sure"))
    agree = stop.get("agree", [])
    sure, least = _sure(stop.get("sure", ""))
    if not isinstance(agree, list) or len(agree) not in (0, 2) or len({*map(str, agree)}) != len(agree):
        raise ValueError("agree must name two calls, such as [small.simple, large.simple]")
    conditions = [*(("agree", name) for name in agree), *([("sure", sure)] if sure != "" else [])]
    for what, name in [("answer", stop.get("answer")), *conditions]:
        if name not in asked:
            others = f", or give one of {', '.join(asked)}" if asked else ""
            raise ValueError(f"{what}: {name} is not asked before: ask it in an earlier step{others}")
    if sure and not sure.endswith(".simple"):
        raise ValueError(f"sure: {sure} has no probability: only a call simple always has one")
    return Stop(stop["exit"], stop["answer"], tuple(agree), sure, least)


def _sure(sure: Any) -> tuple[Any, float | None]:
    """Return the call and the threshold of `sure`: a call, or a mapping from the call to the threshold."""
    if not isinstance(sure, Mapping):
        return sure, None
    if len(sure) != 1:
        raise ValueError(f"sure names {len(sure)} calls: expected one, such as {{large.simple: 0.9}}")
    ((call, least),) = sure.items()
    if isinstance(least, bool) or not isinstance(least, int | float) or not 0 < least <= 1:
        raise ValueError(f"sure: {{{call}: {least}}} needs a probability above 0 and at most 1")
    return call, float(least)


def _refuse_unknown(keys: Iterable[str], names: Collection[str]) -> None:
    for name in keys:
        if name not in names:
            raise ValueError(f"{name} is unknown: expected {', '.join(names)}")
