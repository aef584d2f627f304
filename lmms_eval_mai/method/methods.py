"""Which calls each method makes, and where it stops: Section 4 of the paper as data.

    Eq. 5    A_short^l = VLM_l(Q + Prompt_simple)               Ask("large", "simple")
    Eq. 6    A_short^s = VLM_s(Q + Prompt_simple)               Ask("small", "simple")
    Eq. 7    R_think^s = VLM_s(Q + Prompt_think)                Ask("small", "think")
    Eq. 8    A_think^s = VLM_s(Q + R_think^s + Prompt_simple)   its second call in the two-stage form (`calls_of` of
                                                               walk.py); else the answer inside R_think^s (Section 4.2)
    Eq. 9    A_think^l = VLM_l(Q + R_think^s + Prompt_simple)   Ask("large", "transfer", of="small.think")
    Eq. 10   R_think^l = VLM_l(Q + Prompt_think)                Ask("large", "think")
    Eq. 12   R'_think^s = Select(R_think^s)                     the transfer, with the argument transfer=sparse
    Eq. 13   A_think^l = VLM_l(Q + R'_think^s + Prompt_simple)  the transfer, with the argument transfer=sparse

`walk.py` walks through the steps, `run.py` makes their calls, and `files.py` reads a method from a YAML file.
Everything else about a method is read from its steps: the engines that start, the exits, its row in a report, and what
it would have done with finished calls.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lmms_eval_mai.contract import PROMPTS, SIDES, CallPrompt, Side, Variant


@dataclass(frozen=True)
class Ask:
    """One call to one model."""

    side: Side
    prompt: CallPrompt
    """`think` is Prompt_think, which is `explain`, `think` or `native`, as task and arguments say. `task` is the prompt
    of the task, with which a method makes its only call."""
    of: str = ""
    """transfer: the name of the call whose thinking is transferred."""

    @property
    def name(self) -> str:
        """The name of the call in other steps, such as `small.think`."""
        return f"{self.side}.{self.prompt}"


@dataclass(frozen=True)
class Stop:
    """The sample is done here if the conditions hold. Without a condition it is always done."""

    exit: str
    answer: str
    """The name of the call whose answer is returned."""
    agree: tuple[str, ...] = ()
    """Two calls whose answers must agree (Section 4.1)."""
    sure: str = ""
    """A call to whose answer its model must give at least the threshold as its probability. Not in the paper."""
    min_confidence: float | None = None
    """The threshold of `sure`. None: that of the run."""


Step = Ask | tuple[Ask, ...] | Stop
"""A call, several calls at the same time, or a stop."""


@dataclass(frozen=True)
class Method:
    """A name and the steps, in their order."""

    name: str
    steps: tuple[Step, ...]
    function: Callable[..., Awaitable[Any]] | None = field(default=None, compare=False, repr=False)
    """A function in place of the steps (docs/methods.md). The steps tell the engines and the exits."""

    @property
    def asks(self) -> tuple[Ask, ...]:
        return tuple(ask for step in self.steps for ask in asks_of(step))

    @property
    def stops(self) -> tuple[Stop, ...]:
        return tuple(step for step in self.steps if isinstance(step, Stop))

    @property
    def exits(self) -> tuple[str, ...]:
        return tuple(stop.exit for stop in self.stops)

    @property
    def sides(self) -> tuple[Side, ...]:
        """The models that are asked."""
        return tuple(side for side in SIDES if any(ask.side == side for ask in self.asks))

    @property
    def needs_threshold(self) -> bool:
        """Whether a stop needs the threshold of the run."""
        return any(stop.sure and stop.min_confidence is None for stop in self.stops)

    def is_answer_used(self, ask: Ask) -> bool:
        """Return whether a stop uses the answer of a call. If not, only its thinking is used."""
        return any(ask.name in (stop.answer, stop.sure, *stop.agree) for stop in self.stops)

    @property
    def thinking(self) -> tuple[Ask, ...]:
        return tuple(ask for ask in self.asks if PROMPTS[ask.prompt].thinks)


def asks_of(step: Step) -> tuple[Ask, ...]:
    """Return the calls of a step. Empty: it is a stop."""
    return () if isinstance(step, Stop) else step if isinstance(step, tuple) else (step,)


# --- the methods of the paper ---

LARGE_SIMPLE, SMALL_SIMPLE = Ask("large", "simple"), Ask("small", "simple")
SMALL_THINK, LARGE_THINK = Ask("small", "think"), Ask("large", "think")
TRANSFER = Ask("large", "transfer", of="small.think")
SHORT_ANSWERS = ("small.simple", "large.simple")
THOUGHT_ANSWER = ("small.think", "large.simple")

MAI = Method(
    "mai",
    (
        (LARGE_SIMPLE, SMALL_SIMPLE),  # Eq. 5 and 6, at the same time
        Stop("agree_short", "large.simple", agree=SHORT_ANSWERS),  # Section 4.1, the first mutual verification
        SMALL_THINK,  # Eq. 7, and Eq. 8 in a task with two stages
        Stop("agree_think", "large.simple", agree=THOUGHT_ANSWER),  # Section 4.1, the second verification
        TRANSFER,  # Section 4.2, reasoning transfer: Eq. 9; Eq. 12 and 13 with transfer=sparse
        Stop("transfer", "large.transfer"),
    ),
)
"""Multi-agent inference, the paper's final proposal: Figure 2 (c), Table 10."""

FULL_RT = Method("full_rt", (SMALL_THINK, TRANSFER, Stop("transfer", "large.transfer")))
"""Reasoning transfer on every sample: Table 8, "Full RT" of Tables 10 and 11; Table 9 with transfer=sparse."""

SMALL = Method("small", (Ask("small", "task"), Stop("small", "small.task")))
"""The small model alone with the task's own prompt: 2B-S, -E, -R, -E(S2), -R(S2) of Tables 6 and 7."""

LARGE = Method("large", (Ask("large", "task"), Stop("large", "large.task")))
"""The large model alone with the task's own prompt: 8B-S, -E, -R, -E(S2), -R(S2) of Tables 6 and 7."""

LARGE_R = Method("large_r", (LARGE_THINK, Stop("large_think", "large.think")))
"""The large model alone with the thinking prompt, on any task: that of `large` in a task with prompt R."""

# --- not in the paper: the first check asks how sure the large model is (docs/confidence.md) ---

SURE = Stop("confident", "large.simple", sure="large.simple")

MAI_CONFIDENCE = Method("mai_confidence", (LARGE_SIMPLE, SURE, *MAI.steps[2:]))
"""MAI whose first check is the probability of the large model's short answer, in place of the small model's answer."""

MAI_CONFIDENCE_DIRECT = Method("mai_confidence_direct", (LARGE_SIMPLE, SURE, *FULL_RT.steps))
"""The same without the second check."""

OWN_THINKING = Method("own_thinking", (LARGE_SIMPLE, SURE, LARGE_THINK, Stop("large_think", "large.think")))
"""The large model thinks for itself where it is unsure. No small model is started."""

METHODS: dict[str, Method] = {
    method.name: method
    for method in (MAI, FULL_RT, SMALL, LARGE, LARGE_R, MAI_CONFIDENCE, MAI_CONFIDENCE_DIRECT, OWN_THINKING)
}
"""Value of the argument `method` -> the method. A program may add its own."""


DEFAULT_CONFIDENCE = 0.9
"""The threshold of `sure` if the user gives none. It is not calibrated for any pair."""
NEVER = 2.0
"""A threshold that no probability reaches."""


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of a method. A stop with `sure` asks for the probability that a model gave to its own short answer
    of Eq. 5, p = P(A_short^l | Q + Prompt_simple) = exp(Call.answer_logprob). Not in the paper."""

    min_confidence: float = DEFAULT_CONFIDENCE
    """The least probability of a confident answer: above 0 and at most 1, or `NEVER`."""
    by_benchmark: Mapping[str, float] = field(default_factory=dict)
    """Benchmark -> its own threshold, from a file of `lmms-eval-mai calibrate`."""

    def of(self, benchmark: str) -> float:
        return self.by_benchmark.get(benchmark, self.min_confidence)


CALL_OF_VARIANT: dict[Variant | None, CallPrompt] = {
    row.variant: prompt for prompt, row in PROMPTS.items() if row.is_short or row.thinks
}
"""Prompt of a task (None: another lmms-eval task) -> what a call with it asks."""


def prompt_of(ask: Ask, variant: Variant | None, think: Variant) -> CallPrompt:
    """Return what a call asks in a task.

    `variant`: the prompt of a task of this package. None: another lmms-eval task, which asks for a short answer.
    `think`: Prompt_think in S tasks and in other lmms-eval tasks. With `native`, a model alone thinks by itself there.
    """
    thinks = think if variant in ("S", None) else variant
    if ask.prompt == "think":
        return CALL_OF_VARIANT[thinks]
    if ask.prompt == "task":
        return CALL_OF_VARIANT["native" if thinks == "native" else variant]
    return "task" if ask.prompt == "simple" and variant is None else ask.prompt


def steps_of(method: Method) -> list[Mapping[str, Any]]:
    """Return the steps of a method as JSON values, as a YAML file has them."""
    return [_step_record(step) for step in method.steps]


def _step_record(step: Step) -> Mapping[str, Any]:
    if isinstance(step, Stop):
        sure: Any = step.sure if step.min_confidence is None else {step.sure: step.min_confidence}
        conditions = {"agree": list(step.agree)} if step.agree else {}
        return {"stop": {"exit": step.exit, "answer": step.answer, **conditions, **({"sure": sure} if sure else {})}}
    asks = asks_of(step)
    of = [ask.of for ask in asks if ask.of]
    names = [ask.name for ask in asks]
    return {"ask": names if len(names) > 1 else names[0], **({"of": of[0]} if of else {})}
