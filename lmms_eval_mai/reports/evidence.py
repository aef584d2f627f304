"""The runs by benchmark and method, their scores, and comparisons of two runs on the documents that both have."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from lmms_eval_mai.contract import SIDES, Side
from lmms_eval_mai.paper.prompts import Variant
from lmms_eval_mai.reports import paper_numbers
from lmms_eval_mai.reports.estimates import Comparison, compare, main_metric, run_score, with_paper
from lmms_eval_mai.reports.paper_numbers import PaperNumber
from lmms_eval_mai.reports.records import THINK_E, Document, Method, Run
from lmms_eval_mai.reports.report import Estimate
from lmms_eval_mai.reports.scoring import score_of


class Evidence:
    """All runs of a report."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.gaps: list[str] = []
        self.unused: list[Run] = []
        self.runs: dict[tuple[str, Method], Run] = {}
        for run in runs:
            self._add(run)
        for run in list(self.runs.values()):
            for derived in short_answers(run):
                self._add(derived)
        self._scores: dict[int, Estimate | None] = {}
        self._comparisons: dict[tuple[int, int], Comparison | None] = {}
        self._different: set[tuple[int, int]] = set()
        self._check_totals()
        self._check_limits()

    def _add(self, run: Run) -> None:
        """Keep the run with the most documents of each method. `_rank` decides between runs with equally many."""
        key = run.benchmark, run.method
        other = self.runs.get(key)
        if other is None:
            self.runs[key] = run
            return
        used, unused = sorted((other, run), key=_rank, reverse=True)
        self.runs[key] = used
        if unused.derived:
            return
        self.unused.append(unused)
        same = "has the short answers of" if used.derived else "is a run of"
        self.gaps.append(
            f"{unused.file}: {unused.task} is not used, because {used.file} {same} the same method "
            f"({self.name(run.method)}) on {len(used.documents) or used.number} documents."
        )

    def _check_totals(self) -> None:
        """Compare the score of the documents with the total in the results file."""
        for run in self.runs.values():
            total = main_metric(run)
            found = self.score(run)
            if total is None or found is None or run.derived or not run.documents or found.low is None:
                continue
            if abs(found.value - total[0]) > 0.006:
                self.gaps.append(
                    f"{run.file}: the samples of {run.task} give a score of {found.value:.2f}, and the results file "
                    f"has {total[0]:.2f}. The tables use the samples."
                )

    def _check_limits(self) -> None:
        """Name the runs that have only a part of their data set."""
        made = [run for run in self.runs.values() if not run.derived]
        groups: dict[tuple[str, int, int], list[Run]] = {}
        for run in made:
            if run.number < run.original:
                groups.setdefault((run.benchmark, run.number, run.original), []).append(run)
        for (benchmark, number, original), runs in groups.items():
            others = sum(run.benchmark == benchmark for run in made) - len(runs)
            named = f"all {len(runs)} runs" if not others and len(runs) > 1 else self._named(runs)
            have = "have" if len(runs) > 1 else "has"
            self.gaps.append(
                f"{paper_numbers.benchmark_name(benchmark)}: {named} {have} {number} of {original} documents (--limit)."
            )

    def _named(self, runs: Sequence[Run]) -> str:
        """Return the names of at most three runs, and the number of all others."""
        names = [self.name(run.method) for run in runs[:3]]
        more = len(runs) - len(names)
        return ", ".join(names) + (f" and {more} more" if more else "")

    # --- finding runs ---

    def get(self, benchmark: str, method: Method) -> Run | None:
        """Return the run of a method, or None."""
        return self.runs.get((benchmark, method))

    def benchmarks(self) -> list[str]:
        """Return the benchmarks of the runs, the paper's first and in its order."""
        known = list(paper_numbers.load()["benchmarks"])
        found = dict.fromkeys(benchmark for benchmark, _ in self.runs)
        return sorted(found, key=lambda name: (known.index(name) if name in known else len(known), name))

    def of(self, mode: str, benchmark: str | None = None) -> Iterator[Run]:
        """Yield the runs of a mode, sorted by benchmark and method."""
        for name in self.benchmarks() if benchmark is None else [benchmark]:
            found = [(method, run) for (of, method), run in self.runs.items() if of == name and method.mode == mode]
            for _, run in sorted(found, key=lambda one: (order(one[0].model), one[0].model, str(one[0]))):
                yield run

    # --- names ---

    def label(self, model: str) -> str:
        """Return a short name of a model: the paper's, or the last part of its path or address."""
        known = paper_numbers.family(model)
        if known is not None:
            return known[1]
        name = PurePath(model.rstrip("/")).name.removesuffix(".jsonl") or model
        others = {one for _, method in self.runs for one in (method.model, method.small) if one and one != model}
        same = any(PurePath(one).name.removesuffix(".jsonl") == name for one in others)
        return "/".join([*PurePath(model).parts[-2:-1], name]) if same or name in SIDES else name

    def name(self, method: Method) -> str:
        """Return the paper's name of a method, such as 8B-R(S2), Full RT 8B + 2B-R or MAI 8B + 2B-R. On another
        lmms-eval task: 8B, own prompt or MAI 8B + 2B-R, own prompt."""
        given = [option for option in method.options if method.variant is not None or option != THINK_E]
        options = f" ({', '.join(given)})" if given else ""
        own = ", own prompt" if method.variant is None else ""
        if method.mode == "alone":
            return f"{self.label(method.model)}{own or f'-{method.prompt}'}{options}"
        pair = f"{self.label(method.model)} + {self.label(method.small)}-{method.prompt}{own}"
        return f"{'MAI' if method.mode == 'cascade' else 'Full RT'} {pair}{options}"

    # --- scores and comparisons ---

    def score(self, run: Run | None, paper: PaperNumber | None = None) -> Estimate | None:
        """Return the score of a run in percent, with the benchmark's metric. None: no run, or no score."""
        if run is None:
            return None
        if id(run) not in self._scores:
            self._scores[id(run)] = run_score(run)
        return with_paper(self._scores[id(run)], paper)

    def common(self, first: Run, second: Run) -> tuple[list[Document], list[Document]]:
        """Return the documents that both runs have a score for, in the same order. A sentence is added to the gaps if
        the runs have other documents too."""
        seconds = {document.doc_id: document for document in second.documents if document.score is not None}
        pairs = [
            (document, seconds[document.doc_id])
            for document in first.documents
            if document.score is not None
            and document.doc_id in seconds
            and seconds[document.doc_id].target == document.target
        ]
        different = {len(pairs)} != {len(first.documents), len(second.documents)}
        key = id(first), id(second)
        if first.documents and second.documents and different and key not in self._different:
            self._different |= {key, key[::-1]}
            self.gaps.append(
                f"{self.name(first.method)} and {self.name(second.method)} on "
                f"{paper_numbers.benchmark_name(first.benchmark)} have {len(first.documents)} and "
                f"{len(second.documents)} documents; they are compared on the {len(pairs)} that both have."
            )
        return [a for a, _ in pairs], [b for _, b in pairs]

    def compare(self, first: Run | None, second: Run | None) -> Comparison | None:
        """Compare two runs on their common documents. None: no common documents."""
        if first is None or second is None:
            return None
        key = id(first), id(second)
        if key not in self._comparisons:
            a, b = self.common(first, second)
            self._comparisons[key] = compare(a, b, first.benchmark)
        return self._comparisons[key]


def _rank(run: Run) -> tuple[int, bool, bool, int, str]:
    """Return what decides between two runs of one method: the larger one is used."""
    return len(run.documents), run.ours, not run.derived, run.number, run.file.name


def order(model: str) -> float:
    """Return a number that sorts models by size: the billions of parameters in the paper's name."""
    known = paper_numbers.family(model)
    return float(known[1].removesuffix("B")) if known else 1e6


def short_answers(run: Run) -> Iterator[Run]:
    """Yield the runs that are inside a cascade: both models with the Simple prompt. Their answers are scored here."""
    method = run.method
    if method.mode != "cascade" or not run.documents or any(len(one.verifications) == 0 for one in run.documents):
        return
    variant: Variant | None = "S" if method.variant else None
    for side in SIDES:
        documents = tuple(_short_answer(run.benchmark, document, side) for document in run.documents)
        if all(document.score is not None for document in documents):
            yield replace(
                run,
                method=method.alone(side, variant),
                documents=documents,
                metrics={},
                wall_s=None,
                speculation=None,
                derived=True,
            )


def _short_answer(benchmark: str, document: Document, side: Side) -> Document:
    verification = document.verifications[0]
    parsed = verification.small if side == "small" else verification.large
    score = score_of(benchmark, parsed, document.target)
    if document.exit in ("agree_short", "agree_think") and side == "large":
        score = document.score  # the large model's short answer is the final answer
    labels = None if document.labels is None else (parsed or "other", document.labels[1])
    calls = tuple(call for call in document.calls if (call.side, call.stage) in ((side, "short"), (side, "task")))
    return replace(
        document,
        score=score,
        labels=labels,
        exit=side,
        readable=parsed is not None,
        verifications=(),
        calls=calls,
        output_tokens=sum(call.output_tokens for call in calls),
    )
