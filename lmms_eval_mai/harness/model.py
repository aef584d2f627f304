"""The model `mai_cascade`: takes lmms-eval's requests and returns its results. Holds no part of the algorithm.

The engines that the method uses start when the first requests arrive that are not padding. They serve every later call,
and stop in `clean()`, which lmms-eval calls once, before it scores.
"""

import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any, Self

import torch
from lmms_eval.api.instance import GenerationResult, Instance
from lmms_eval.api.model import lmms

from lmms_eval_mai.errors import ArgumentError, SampleError
from lmms_eval_mai.harness.command import report_errors_to_user
from lmms_eval_mai.harness.requests import Request, decoding_of, grouped_by_image, log_use, open_sample, read_requests
from lmms_eval_mai.harness.results import fill_throughput, fill_usage, results_of, round_texts_of, text_of
from lmms_eval_mai.harness.saved import SaveWatch, check_output_path
from lmms_eval_mai.harness.totals import Totals, final_table
from lmms_eval_mai.plugin import follow_tracker
from lmms_eval_mai.run.config import Config, parse, refuse_lmms_evals_own
from lmms_eval_mai.run.engines import Engines
from lmms_eval_mai.run.evaluation import Evaluation
from lmms_eval_mai.run.outcomes import Outcome
from lmms_eval_mai.run.store import Store
from lmms_eval_mai.user_input import values_of


class CascadeModel(lmms):
    """The paper's cascade as an evaluated model."""

    is_simple = False

    def __init__(self, engines: Engines, config: Config, store: Store | None = None) -> None:
        """`store`: one that several runs share, and their engines too. Then the caller stops the engines, and prints
        the tables of all runs. Raises `ArgumentError` or `StoreError`."""
        super().__init__()
        self.config = config
        self._engines, self._store, self._keeps_engines = engines, store, store is not None
        self._evaluation = Evaluation(engines, config, store)
        """The one that is under way or comes next."""
        self._save_watch: SaveWatch | None = None
        """Of the last evaluation, if its results may not be saved yet."""

    @property
    def device(self) -> torch.device:
        """Return where lmms-eval puts the tensors that it gathers between ranks."""
        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        if distributed and torch.distributed.get_backend() == "nccl":
            return torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        return torch.device("cpu")

    def loglikelihood(self, requests: list[Instance]) -> list[Any]:
        with report_errors_to_user():
            task, form = requests[0].task_name, requests[0].request_type
            raise ArgumentError(f"Leave out task {task}: mai_cascade cannot answer {form} requests.")

    generate_visual_cot = generate_until_agentic = loglikelihood

    @property
    def chat_template(self) -> str:
        """Refuse `--apply_chat_template`: lmms-eval asks for the template only with it. Raises `ArgumentError`."""
        with report_errors_to_user():
            raise ArgumentError("Leave out --apply_chat_template: each engine applies the chat template of its model.")

    apply_chat_template = chat_template

    def generate_until(self, requests: list[Instance]) -> list[GenerationResult]:
        """Return one result per request. Its token counts hold the sample's trace."""
        return results_of(self._answer(requests), text_of)

    def generate_until_multi_round(self, requests: list[Instance]) -> list[GenerationResult]:
        """Return one result per request of an `_s2` task. The cascade drives the rounds itself; a result holds every
        text of its sample, the answer last."""
        return results_of(self._answer(requests), round_texts_of)

    def _answer(self, instances: list[Instance]) -> list[tuple[Request, Outcome | None]]:
        """Return each request with its outcome; None for padding."""
        evaluation = self._open_evaluation()
        with report_errors_to_user(evaluation.resume_hint):
            try:
                requests = self._checked(instances)
                asked = [request for request in requests if not request.is_padding]
                outcomes = self._outcomes(evaluation, asked, decoding_of(requests))
            except BaseException:  # lmms-eval does not call `clean()` then
                evaluation.stop()
                raise
        fill_usage(outcomes, self.config)
        exclude_from_scoring(
            request for request, outcome in zip(asked, outcomes, strict=True) if isinstance(outcome, SampleError)
        )
        left = iter(outcomes)
        return [(request, None if request.is_padding else next(left)) for request in requests]

    def _checked(self, instances: list[Instance]) -> list[Request]:
        requests = read_requests(instances, self.config)
        log_use(requests, self.task_dict, self.config, prompts=self.rank == 0)
        if requests and self.rank == 0:  # it alone writes results
            check_output_path(requests[0].task_object, self.config)
        return requests

    def _outcomes(self, evaluation: Evaluation, requests: list[Request], decoding: Mapping[str, Any]) -> list[Outcome]:
        order = None
        if self.config.group_images:  # while the engines start
            documents = [(request.task, request.split, request.doc_id) for request in requests]
            order = ThreadPoolExecutor(1).submit(grouped_by_image, documents, self.task_dict).result
        return evaluation.answer(
            [request.key for request in requests],
            lambda index: open_sample(requests[index], self.task_dict),
            decoding,
            self.rank,
            self.world_size,
            order,
        )

    def _open_evaluation(self) -> Evaluation:
        """Return the evaluation that is under way. If there is none, the next one begins."""
        if self._evaluation.closed:
            self._finish()
            if self._engines.stopped:
                self._engines = Engines(self.config)
            self._evaluation = Evaluation(self._engines, self.config, self._store)
        return self._evaluation

    def clean(self) -> None:
        """End the evaluation: stop the engines unless they are kept, and follow the results until they are saved."""
        evaluation = self._open_evaluation()  # a new one if no request has reached the model since the last one
        with report_errors_to_user(evaluation.resume_hint):
            counted = Totals.of(evaluation.traces, evaluation.failures, evaluation.resumed)
            evaluation.traces.clear()
            if self._keeps_engines:
                evaluation.close()
            else:
                evaluation.stop()
            totals = gathered(counted, self.world_size)
            table = ""
            if totals.counts or totals.failures.count:
                fill_throughput(totals)
                table = final_table(totals, self.config) if self._store is None else ""
            if self.rank == 0:
                self._save_watch = SaveWatch(evaluation, f"{type(self).__module__}.{type(self).__name__} ", table)
            follow_tracker(self._save_watch)
            super().clean()

    def close(self) -> None:
        """Stop the engines, if they are running. The results of the last evaluation count as saved, so its call store
        is removed. The next evaluation starts the engines again."""
        self._evaluation.stop()
        self._finish()

    def _finish(self, failed: bool = False) -> None:
        if self._save_watch is not None:
            self._save_watch.finish(failed)
            self._save_watch = None


class MaiCascade(CascadeModel):
    """The model `mai_cascade`. Its arguments are those of `run.config.Config`. Inside a `with` block, the engines stay
    up between several calls of `simple_evaluate`, and stop at its end."""

    def __init__(
        self, batch_size: Any = None, max_batch_size: Any = None, device: Any = None, **arguments: Any
    ) -> None:
        """lmms-eval's own arguments are ignored: vLLM batches requests itself, `max_open_samples` limits the samples at
        the same time, and the engines have arguments for their devices. Raises `ArgumentError`, `EngineUnavailable`,
        `EngineStartError` or `StoreError`."""
        with report_errors_to_user():
            config = parse(arguments)
            super().__init__(Engines(config), config)

    @classmethod
    def create_from_arg_string(cls, arg_string: Any, additional_config: dict[str, Any] | None = None) -> Self:
        """Return the model for `--model_args`, a text or, from Python or a YAML file, a mapping. `additional_config`:
        options of lmms-eval. Some have the names of engine arguments. Raises the errors of the constructor."""
        with report_errors_to_user():
            given = arg_string if isinstance(arg_string, Mapping) else values_of("--model_args", arg_string)
            refuse_lmms_evals_own(given)
        return cls(**given, **{name: value for name, value in (additional_config or {}).items() if value is not None})

    def __enter__(self) -> Self:
        self._keeps_engines = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        self._keeps_engines = False
        self._finish(failed=kind is not None)
        self.close()


def exclude_from_scoring(failed: Iterable[Request]) -> None:
    """Remove samples without an answer from their tasks. lmms-eval skips documents that have no request (evaluator.py,
    "a partial rerun can leave a document ... without any corresponding requests")."""
    for task, requests in groupby(failed, key=lambda request: request.task_object):
        excluded = {id(request.instance) for request in requests}
        task._instances = [instance for instance in task._instances if id(instance) not in excluded]


def gathered(totals: Totals, world_size: int) -> Totals:
    """Return what all ranks have counted: lmms-eval itself collects only scores and samples. All ranks must call this
    at the same point of the run."""
    if world_size == 1:
        return totals
    every_rank = [totals] * world_size
    torch.distributed.all_gather_object(every_rank, totals)
    return Totals.merged(every_rank)
