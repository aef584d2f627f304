"""The model `mai_cascade`: takes lmms-eval's requests and returns its results. Holds no part of the algorithm.

All engines that the mode uses start when the first requests arrive; padding requests do not start them. The engines
serve every later call of `generate_until` and `generate_until_multi_round`, and stop in `clean()`, which lmms-eval
calls once, before it scores. With `keep=true`, and inside a `with` block, they stay up for the next `simple_evaluate`.
"""

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import torch
from lmms_eval.api.instance import GenerationResult, Instance
from lmms_eval.api.model import lmms
from lmms_eval.utils import simple_parse_args_string
from loguru import logger

from lmms_eval_mai.errors import ArgumentError, MaiError, SampleError
from lmms_eval_mai.harness import usage
from lmms_eval_mai.harness.exit_codes import report_errors_to_user, watch_for_unsaved_results
from lmms_eval_mai.harness.figures_file import write_beside, write_waiting
from lmms_eval_mai.harness.other_tasks import format_sentence, notice
from lmms_eval_mai.harness.ranks import of_all_ranks
from lmms_eval_mai.harness.requests import TWO_STAGE_TASKS, check_stages, is_padding, open_sample, repeats, task_of
from lmms_eval_mai.harness.results import add_repeats, result, rounds_result
from lmms_eval_mai.harness.running_command import (
    gen_kwargs,
    print_last,
    results_file,
    results_written,
    running_command,
)
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.run.config import parse, refuse_lmms_evals_own
from lmms_eval_mai.run.decoding import check_conflict, sampling
from lmms_eval_mai.run.decoding_arguments import ignored_arguments
from lmms_eval_mai.run.figures import figures
from lmms_eval_mai.run.final_table import table
from lmms_eval_mai.run.journal.removal import keep
from lmms_eval_mai.run.metering import RunTotals
from lmms_eval_mai.run.progress import Outcome
from lmms_eval_mai.run.session import Session


class MaiCascade(lmms):
    """The paper's cascade as an evaluated model. Its arguments are those of `run.config.Config`.

    Inside a `with` block, the engines stay up between several calls of `simple_evaluate`, and stop at its end.
    """

    is_simple = False

    def __init__(
        self, batch_size: Any = None, max_batch_size: Any = None, device: Any = None, **arguments: Any
    ) -> None:
        """Raises `ArgumentError`, `EngineUnavailable`, `EngineStartError` or `JournalError`.

        `batch_size`, `max_batch_size` and `device` are arguments of lmms-eval's own and are ignored: vLLM batches
        requests itself, and the transformers engine has `small_batch_size`, `large_batch_size`, `small_device` and
        `large_device`. `max_open_samples` limits the number of samples at the same time.
        """
        write_waiting()
        with report_errors_to_user():
            session = Session(parse(arguments))
        self._set_up(session)
        # With several configurations in a command, each has a model of its own.
        self._keeps_engines = self.config.keep and running_command() is None

    @classmethod
    def of_session(cls, session: Session) -> Self:
        """Return a model whose samples run in this session. The caller stops the engines, and removes the journal when
        the results are on the disk (`Session.complete`)."""
        model = cls.__new__(cls)
        model._set_up(session)
        model._keeps_engines, model._removes_journal = True, False
        return model

    def _set_up(self, session: Session) -> None:
        super().__init__()
        self.config, self._session = session.config, session
        self._removes_journal = True
        self._warned: set[str] = set()
        self.figures: dict[str, Any] = {}
        """The figures of the last run that answered samples, as in `<time>_mai_cascade.json` (docs/output.md). Empty
        before the end of the first run. With several ranks they are those of all ranks."""
        self._figures_written = True
        self._stopped = False
        """Whether an error ended the last evaluation, so that its totals must not count in the next one."""

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Self:
        """Return the model for `--model_args`. Raises the errors of the constructor.

        `additional_config`: options of lmms-eval. Some have the names of engine arguments.
        """
        with report_errors_to_user():
            refuse_lmms_evals_own(simple_parse_args_string(arg_string))
        model: Self = super().create_from_arg_string(arg_string, additional_config)
        return model

    def close(self) -> None:
        """Stop the engines, if they are running. The next evaluation starts them again."""
        self._session.stop()

    def __enter__(self) -> Self:
        self._keeps_engines = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._keeps_engines = self.config.keep
        self.close()

    @property
    def device(self) -> torch.device:
        """Return where lmms-eval puts the tensors that it gathers between ranks."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and torch.distributed.get_backend() == "nccl":
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        return torch.device("cpu")

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        with report_errors_to_user(), self._stopped_on_error():
            raise MaiError(
                f"Task {requests[0].task_name} needs log-likelihoods, which mai_cascade does not compute. Choose tasks "
                "whose output_type is generate_until."
            )

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Return one result per request, in order. The token counts of a result hold the sample's trace."""
        results = [
            result(outcome, own_task=task_of(request).variant is not None)
            for request, outcome in zip(requests, self._run(requests), strict=True)
        ]
        add_repeats(results, repeats(requests))
        return results

    def generate_until_multi_round(self, requests: list[Instance]) -> list[GenerationResult]:
        """Return one result per request of an `_s2` task. The cascade drives the rounds itself; a result holds every
        text of its sample, the answer last."""
        results = [rounds_result(outcome) for outcome in self._run(requests, rounds=True)]
        add_repeats(results, repeats(requests))
        return results

    @property
    def batch_sizes(self) -> dict[str, int]:
        """Return an empty dict, and call `_on_scored`.

        lmms-eval reads this property after scoring and at no other time (evaluator.py, `simple_evaluate`), and it calls
        nothing else of the model at that moment.
        """
        self._on_scored()
        return {}

    def clean(self) -> None:
        """Stop the engines unless they are kept, fill lmms-eval's throughput table, and print our own table below
        lmms-eval's tables."""
        with report_errors_to_user(self._session.resume_hint):
            if self._keeps_engines:
                self._session.close_journal()
            else:
                self._session.stop()
            totals = of_all_ranks(self._session.totals, self.world_size)
            self._session.totals = RunTotals()
            if totals.meter.tasks:
                self.figures, self._figures_written = figures(totals, self.config, self._session.settings()), False
                usage.log_throughput(totals, self.config)
                if self.rank == 0:
                    print_last(running_command(), table(totals, self.config))
            super().clean()

    def _on_scored(self) -> None:
        """Once the results are written, remove the journal of the run and write its figures beside the results. Calling
        it again has no effect."""
        if not self._figures_written and (file := results_file()) is not None:
            write_beside(file, self.figures)
        self._figures_written = True
        if self._removes_journal:
            self._session.complete(results_written(running_command()))
        watch_for_unsaved_results(_keep_journals_and_say_where)

    def _run(self, requests: list[Instance], rounds: bool = False) -> list[Outcome | None]:
        """Return one outcome per request; None for padding. After any error no engine is left running, because
        lmms-eval does not call `clean()` then."""
        if self._stopped:  # only now: the message of the error names what is in the journal
            self._stopped = False
            self._session.forget_run()
        with report_errors_to_user(self._session.resume_hint), self._stopped_on_error():
            self._reject_unsupported(requests, rounds)
            self._tell_about_other_tasks(requests)
            todo = [
                (index, repeat) for index, repeat in enumerate(repeats(requests)) if not is_padding(requests[index])
            ]

            def open_(number: int) -> Sample:
                index, repeat = todo[number]
                return open_sample(requests[index], repeat, self.task_dict, self.config)

            keys = [(requests[index].args[4], requests[index].args[3], repeat) for index, repeat in todo]
            arguments = {request.args[4]: request.args[2] for request in requests}
            found = self._session.run_samples(keys, open_, arguments, self.rank, self.world_size)
            models = {engine.side: engine.model for engine in self.config.engines()}
            outcomes: list[Outcome | None] = [None] * len(requests)
            for (index, _), outcome in zip(todo, found, strict=True):
                outcomes[index] = outcome
                if isinstance(outcome, SampleError):
                    exclude_from_scoring(requests[index])
                else:
                    usage.log_call_usage(outcome, models)
        return outcomes

    def _reject_unsupported(self, requests: list[Instance], rounds: bool) -> None:
        """Refuse tasks and decoding arguments that cannot work, before the engines start. Raises `ArgumentError`."""
        # task_dict has all tasks of the command. lmms-eval gives us the requests of the _s2 tasks in a call of their
        # own, which may come after the first engine start.
        two_stage = {request.args[4] for request in requests if task_of(request).two_stage}
        two_stage |= TWO_STAGE_TASKS & set(self.task_dict)
        if self.config.mode == "transfer":
            for name in two_stage:  # an application may use this model again, for other tasks
                self.task_dict.pop(name, None)
        check_stages(self.config.mode, two_stage)
        check_conflict(gen_kwargs(), self.config)
        for name, request in {request.args[4]: request for request in requests}.items():
            variant = task_of(request).variant
            if rounds and variant is None:
                raise ArgumentError(
                    f"Task {name} has rounds of its own, which mai_cascade does not support: "
                    "choose tasks of type generate_until, or one of the _s2 tasks of lmms-eval-mai."
                )
            sampling(request.args[2], self.config, own_task=variant is not None)
            ignored = ignored_arguments(request.args[2])
            if ignored and name not in self._warned:
                self._warned.add(name)
                logger.warning(f"{name}: mai_cascade ignores {', '.join(ignored)}, as lmms-eval's vllm model does.")

    def _tell_about_other_tasks(self, requests: list[Instance]) -> None:
        """Tell how the prompts of other lmms-eval tasks are used, once per task, before the engines start."""
        if self.rank != 0 or self.config.mode not in ("cascade", "transfer"):
            return
        for name, request in {request.args[4]: request for request in reversed(requests)}.items():
            if task_of(request).variant is None:
                with contextlib.suppress(MaiError):  # a document that cannot be opened fails later, with its message
                    sample = open_sample(request, 0, self.task_dict, self.config)
                    sentence = format_sentence(request, sample.own_prompt)
                    logger.info(f"mai_cascade: {notice(name, sentence)}")

    @contextlib.contextmanager
    def _stopped_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._session.stop()
            self._stopped = True
            raise


def _keep_journals_and_say_where() -> str:
    """Cancel the removal of all journals. Returns their paths and how to score their answers, or an empty text."""
    paths = ", ".join(map(str, keep()))
    return (
        f"All answers are still in {paths}: the same command with another --output_path scores them." if paths else ""
    )


def exclude_from_scoring(request: Instance) -> None:
    """Remove a sample without an answer from its task. lmms-eval skips documents that have no request (evaluator.py, "a
    partial rerun can leave a document ... without any corresponding requests")."""
    task = getattr(request.args[1], "__self__", None)
    if task is None or not isinstance(getattr(task, "_instances", None), list):
        raise MaiError(
            f"{request.args[4]} document {request.args[3]} has no answer, and with this version of lmms-eval, "
            "mai_cascade cannot leave it out of the scores. Fix the cause, which the warning above names, or install "
            "lmms-eval 0.7.3."
        )
    task._instances = [instance for instance in task._instances if instance is not request]
