"""The model `mai_cascade`: takes lmms-eval's requests and returns its results. Holds no part of the algorithm.

All engines that the mode uses start when the first requests arrive; padding requests do not start them. The engines
serve every later call of `generate_until` and `generate_until_multi_round`, and stop in `clean()`, which lmms-eval
calls once, before it scores. With `keep=true`, and inside a `with` block, they stay up for the next `simple_evaluate`.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import torch
from lmms_eval.api.instance import GenerationResult, Instance
from lmms_eval.api.model import lmms
from lmms_eval.utils import simple_parse_args_string
from loguru import logger

from lmms_eval_mai.contract import Engine
from lmms_eval_mai.errors import ArgumentError, MaiError, SampleError
from lmms_eval_mai.harness import usage
from lmms_eval_mai.harness.exit_codes import report_errors_to_user, watch_for_unsaved_results
from lmms_eval_mai.harness.figures_file import write_beside, write_waiting
from lmms_eval_mai.harness.other_tasks import format_sentence, notice
from lmms_eval_mai.harness.requests import (
    TWO_STAGE_TASKS,
    check_stages,
    fields_of,
    is_padding,
    open_sample,
    repeats,
    task_of,
)
from lmms_eval_mai.harness.results import add_repeats, result, rounds_result
from lmms_eval_mai.harness.running_command import configurations, gen_kwargs, print_last, results_file
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.run.config import Config, parse, refuse_lmms_evals_own
from lmms_eval_mai.run.decoding import check_conflict, sampling
from lmms_eval_mai.run.decoding_arguments import ignored_arguments
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.figures import figures
from lmms_eval_mai.run.final_table import table
from lmms_eval_mai.run.metering import RunTotals
from lmms_eval_mai.run.progress import Outcome
from lmms_eval_mai.run.run import Run


class CascadeModel(lmms):
    """The paper's cascade as an evaluated model, on engines that others may use too."""

    is_simple = False

    def __init__(
        self,
        engines: Engines,
        config: Config,
        share: Callable[[Engine], Engine] = lambda engine: engine,
        keeps_engines: bool = True,
        removes_journal: bool = False,
        prints_table: bool = True,
    ) -> None:
        """`share`: as for `Run`. `keeps_engines`: the engines stay up after an evaluation, and the caller stops them.
        `removes_journal`: the journal is removed when the evaluation is scored, and else by `remove_journal`.
        `prints_table`: an evaluation ends with its final table. Raises `ArgumentError` or `JournalError`."""
        super().__init__()
        self.config = config
        self._engines, self._share = engines, share
        self._keeps_engines, self._removes_journal = keeps_engines, removes_journal
        self._prints_table = prints_table
        self._evaluation = self._new_run()
        """The run of the evaluation that is under way or comes next."""
        self.figures: dict[str, Any] = {}
        """The figures of the last run that answered samples, as in `<time>_mai_cascade.json` (docs/output.md). Empty
        before the end of the first run. With several ranks they are those of all ranks."""
        self._has_new_figures = self._scored = False

    @property
    def totals(self) -> RunTotals:
        """Return the figures so far of the evaluation that is under way, or of the last one. Those of this rank."""
        return self._evaluation.totals

    def _new_run(self) -> Run:
        return Run(self._engines, self.config, share=self._share)

    def close(self) -> None:
        """Stop the engines, if they are running. The next evaluation starts them again."""
        self._evaluation.stop()

    def remove_journal(self) -> None:
        """Remove the journal of the last evaluation: its results are on the disk."""
        self._evaluation.complete(None)

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
        """Return an empty dict. lmms-eval reads this property after scoring and at no other time (evaluator.py,
        `simple_evaluate`), and it calls nothing else of the model at that moment. So here the journal of the run is
        removed, and its figures are written beside the results, as soon as lmms-eval has written them."""
        if not self._scored:  # lmms-eval reads it twice
            self._scored = True
            self._finish()
        return {}

    def _finish(self) -> None:
        file, found = None, True
        try:
            file = results_file()
        except LookupError as error:
            found = False
            logger.warning(
                "mai_cascade: the figures of this run are not written beside lmms-eval's results, because the name of "
                f"the results file was not found ({error}). Install lmms-eval 0.7.3."
            )
        if self._has_new_figures and file is not None:
            write_beside(file, self.figures)
        if self._removes_journal:
            in_library = configurations() is None  # the caller has the results then
            self._evaluation.complete(None if in_library else lambda: found and (file is None or file.exists()))
        watch_for_unsaved_results()

    def clean(self) -> None:
        """Stop the engines unless they are kept, fill lmms-eval's throughput table, and print our own table below
        lmms-eval's tables."""
        run = self._evaluation
        with report_errors_to_user(run.resume_hint):
            if self._keeps_engines:
                run.close()
            else:
                self.close()
            totals = of_all_ranks(run.totals, self.world_size)
            self._has_new_figures, self._scored = bool(totals.tasks), False
            if totals.tasks:
                self.figures = figures(totals, self.config, run.settings())
                usage.log_throughput(totals, self.config)
                if self.rank == 0 and self._prints_table:
                    print_last(table(totals, self.config))
            super().clean()

    def _run(self, requests: list[Instance], rounds: bool = False) -> list[Outcome | None]:
        """Return one outcome per request; None for padding. After any error no engine is left running, because
        lmms-eval does not call `clean()` then."""
        if self._evaluation.closed:
            self._evaluation = self._new_run()
        run = self._evaluation
        with report_errors_to_user(run.resume_hint), self._stopped_on_error():
            self._reject_unsupported(requests, rounds)
            self._tell_about_other_tasks(requests)
            numbered = zip(requests, repeats(requests), strict=True)
            todo = [(request, repeat) for request, repeat in numbered if not is_padding(request)]

            def open_(number: int) -> Sample:
                return open_sample(*todo[number], self.task_dict, self.config)

            fields = [fields_of(request) for request in requests]
            keys = [(fields_of(request).task, fields_of(request).doc_id, repeat) for request, repeat in todo]
            arguments = {of.task: of.gen_kwargs for of in fields}
            outcomes = run.run_samples(keys, open_, arguments, self.rank, self.world_size)
            models = {engine.side: engine.model for engine in self.config.engines()}
            for outcome in outcomes:
                if not isinstance(outcome, SampleError):
                    usage.log_call_usage(outcome, models)
        answered = zip(todo, outcomes, strict=True)
        exclude_from_scoring([request for (request, _), outcome in answered if isinstance(outcome, SampleError)])
        left = iter(outcomes)
        return [None if is_padding(request) else next(left) for request in requests]

    def _reject_unsupported(self, requests: list[Instance], rounds: bool) -> None:
        """Refuse tasks and decoding arguments that cannot work, before the engines start. Raises `ArgumentError`."""
        # task_dict has all tasks of the command. lmms-eval gives us the requests of the _s2 tasks in a call of their
        # own, which may come after the first engine start.
        two_stage = {fields_of(request).task for request in requests if task_of(request).two_stage}
        two_stage |= TWO_STAGE_TASKS & set(self.task_dict)
        if self.config.mode == "transfer":
            for name in two_stage:  # an application may use this model again, for other tasks
                self.task_dict.pop(name, None)
        check_stages(self.config.mode, two_stage)
        check_conflict(gen_kwargs(), self.config)
        for name, request in {fields_of(request).task: request for request in requests}.items():
            variant = task_of(request).variant
            if rounds and variant is None:
                raise ArgumentError(
                    f"Task {name} has rounds of its own, which mai_cascade does not support: "
                    "choose tasks of type generate_until, or one of the _s2 tasks of lmms-eval-mai."
                )
            given = fields_of(request).gen_kwargs
            sampling(given, self.config, own_task=variant is not None)
            ignored = ignored_arguments(given)
            if ignored:
                logger.warning(f"{name}: mai_cascade ignores {', '.join(ignored)}, as lmms-eval's vllm model does.")

    def _tell_about_other_tasks(self, requests: list[Instance]) -> None:
        """Tell how the prompts of other lmms-eval tasks are used, once per task, before the engines start."""
        if self.rank != 0 or self.config.mode not in ("cascade", "transfer"):
            return
        for name, request in {fields_of(request).task: request for request in reversed(requests)}.items():
            if task_of(request).variant is None:
                with contextlib.suppress(MaiError):  # a document that cannot be opened fails later, with its message
                    sample = open_sample(request, 0, self.task_dict, self.config)
                    sentence = format_sentence(fields_of(request).doc_to_messages, sample.own_prompt)
                    logger.info(f"mai_cascade: {notice(name, sentence)}")

    @contextlib.contextmanager
    def _stopped_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise


class MaiCascade(CascadeModel):
    """The model `mai_cascade`. Its arguments are those of `run.config.Config`.

    Inside a `with` block, the engines stay up between several calls of `simple_evaluate`, and stop at its end.
    """

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
            config = parse(arguments)
            # With several configurations in a command, each has a model of its own.
            keeps_engines = config.keep and configurations() is None
            super().__init__(Engines(config), config, keeps_engines=keeps_engines, removes_journal=True)

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Self:
        """Return the model for `--model_args`. Raises the errors of the constructor.

        `additional_config`: options of lmms-eval. Some have the names of engine arguments.
        """
        with report_errors_to_user():
            refuse_lmms_evals_own(simple_parse_args_string(arg_string))
        model: Self = super().create_from_arg_string(arg_string, additional_config)
        return model

    def __enter__(self) -> Self:
        self._keeps_engines = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._keeps_engines = self.config.keep
        self.close()


def exclude_from_scoring(failed: Sequence[Instance]) -> None:
    """Remove samples without an answer from their tasks. lmms-eval skips documents that have no request (evaluator.py,
    "a partial rerun can leave a document ... without any corresponding requests")."""
    excluded = {id(request) for request in failed}
    tasks = [fields_of(request).doc_to_messages.__self__ for request in failed]
    for task in {id(task): task for task in tasks}.values():
        task._instances = [instance for instance in task._instances if id(instance) not in excluded]


def of_all_ranks(totals: RunTotals, world_size: int) -> RunTotals:
    """Return the figures of the whole run: lmms-eval itself collects only scores and samples. All ranks must call this
    at the same point of the run."""
    if world_size == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return totals
    found: list[RunTotals] = [totals] * world_size
    torch.distributed.all_gather_object(found, totals)
    return RunTotals.of_ranks(found)
