"""`--model mai_cascade`: lmms-eval's requests in, its results out. No algorithm.

The engines start with the first request that needs them, serve every later call of `generate_until` and
`generate_until_multi_round`, and stop in `clean()`, which lmms-eval calls once, before it scores.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch
from lmms_eval.api.instance import GenerationResult, Instance
from lmms_eval.api.model import lmms

from lmms_eval_mai.errors import ArgumentError, MaiError, SampleError
from lmms_eval_mai.harness.exit_codes import ends_if_results_are_lost, results_written, told_to_user
from lmms_eval_mai.harness.requests import sampling, task_of
from lmms_eval_mai.paper.agreement import extract_answer
from lmms_eval_mai.paper.sample import Trace
from lmms_eval_mai.run import table as report
from lmms_eval_mai.run.config import parse
from lmms_eval_mai.run.journal_files import keep_complete
from lmms_eval_mai.run.metering import Run, TraceCounts
from lmms_eval_mai.run.session import Outcome, Session

NOTHING = GenerationResult(None)  # type: ignore[arg-type]
"""What a sample without an answer has. Of a blank text lmms-eval's response cache keeps a note in its log, and takes it
for an answer when it reads that again; null it reads as a miss."""


class Rounds(list):  # type: ignore[type-arg]
    """The texts of a two-stage task's calls, the answer last, as `generate_until_multi_round` returns them.

    lmms-eval's response cache calls `.strip()` on the text of a `GenerationResult`
    (caching/response_cache.py, `_is_valid_response`) and stores what it gets as JSON.
    """

    def strip(self) -> str:
        return str(self[-1]).strip()


class MaiCascade(lmms):
    """The paper's cascade as an evaluated model. Its arguments are those of `config.Config`."""

    is_simple = False

    def __init__(
        self, batch_size: Any = None, max_batch_size: Any = None, device: Any = None, **arguments: Any
    ) -> None:
        """`batch_size`, `max_batch_size` and `device` are lmms-eval's and say nothing here: vLLM batches what is
        ready, `max_open_samples` bounds it. Raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`."""
        super().__init__()
        with told_to_user():
            self.config = parse(arguments)
            self._session = Session(self.config)

    @property
    def device(self) -> torch.device:
        """Where lmms-eval puts the tensors it gathers between ranks."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and torch.distributed.get_backend() == "nccl":
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        return torch.device("cpu")

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        with told_to_user(), self._stopped_on_error():
            raise MaiError(
                "mai_cascade generates answers and has no loglikelihood: choose tasks of type generate_until."
            )

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """One result a request, in order; the trace of each sample is in its token counts."""
        return [self._result(request, outcome) for request, outcome in self._walk(requests)]

    def generate_until_multi_round(self, requests: list[Instance]) -> list[GenerationResult]:
        """The `_s2` tasks. The cascade drives their rounds itself; every text of a sample is returned, answer last."""
        return [_rounds(outcome) for _, outcome in self._walk(requests, rounds=True)]

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Batch sizes as lmms-eval reports them: there are none. It asks when the results are there and never before
        (evaluator.py, `simple_evaluate`), so this is where a complete run's journal goes."""
        self._session.complete(results_written())
        ends_if_results_are_lost(_kept_journal)
        return {}

    def clean(self) -> None:
        """Stop both engines, fill lmms-eval's throughput table and print our own."""
        with told_to_user(self._session.resume_hint):
            self._session.stop()
            run, self._session.run = self._session.run, Run()
            if run.meter.tasks:
                report.log_throughput(run, self.config)
                print(report.table(run, self.config, self.rank, self.world_size), flush=True)
            super().clean()

    def _walk(self, requests: list[Instance], rounds: bool = False) -> list[tuple[Instance, Outcome]]:
        """Whatever goes wrong, a refused second batch of requests too, no engine is left behind: lmms-eval does not
        call `clean()` then."""
        with told_to_user(self._session.resume_hint), self._stopped_on_error():
            for request in {request.args[4]: request for request in requests}.values():
                # Refuse what cannot work before the engines start.
                _check(request, rounds)
                sampling(request.args[2], task_of(request).variant, self.config.think, self.config.max_new_tokens)
            outcomes = self._session.walk(requests, self.task_dict, self.rank, self.world_size)
            walked = list(zip(requests, outcomes, strict=True))
            for request, outcome in walked:
                if isinstance(outcome, SampleError):
                    _leave_out(request)
        return walked

    @contextlib.contextmanager
    def _stopped_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._session.stop()
            raise

    def _result(self, request: Instance, outcome: Outcome) -> GenerationResult:
        if not isinstance(outcome, Trace):
            return NOTHING
        # Our tasks take the answer out of its brackets themselves. Others do not know them, and did not ask for them
        # where their own prompt was used.
        answer = outcome.answer
        ours = task_of(request).variant is not None
        text = answer.text if ours or answer.key.stage == "task" else extract_answer(answer.text)
        return GenerationResult(text, TraceCounts.of(outcome))


def _kept_journal() -> str:
    paths = ", ".join(map(str, keep_complete()))
    return (
        f"All answers are still in {paths}: the same command with another --output_path scores them." if paths else ""
    )


def _check(request: Instance, rounds: bool) -> None:
    if task_of(request).variant is None and rounds:
        raise ArgumentError(
            f"Task {request.args[4]} asks in rounds of its own, which mai_cascade does not drive: "
            "choose tasks of type generate_until, or one of the _s2 tasks of lmms-eval-mai."
        )


def _rounds(outcome: Outcome) -> GenerationResult:
    if not isinstance(outcome, Trace):
        return NOTHING
    others = [call.text for call in outcome.calls if call is not outcome.answer]
    return GenerationResult(Rounds([*others, outcome.answer.text]), TraceCounts.of(outcome))  # type: ignore[arg-type]


def _leave_out(request: Instance) -> None:
    """A sample without an answer is not scored: lmms-eval passes over documents that have no request (evaluator.py,
    "a partial rerun can leave a document ... without any corresponding requests")."""
    task = getattr(request.args[1], "__self__", None)
    if task is None or not isinstance(getattr(task, "_instances", None), list):
        raise MaiError(
            f"{request.args[4]} document {request.args[3]} has no answer, and this lmms-eval does not let us leave it "
            "out of its scores. Run with max_errors=0 and mend the document."
        )
    task._instances = [instance for instance in task._instances if instance is not request]
