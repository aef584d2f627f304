"""The report of all methods on yes-no questions, and the runs of a page, which several test files look at."""

import pytest
from support.pages import write_runs
from support.worlds import WORLD, write_all

from lmms_eval_mai.reports import build
from lmms_eval_mai.reports.report import Report
from lmms_eval_mai.reports.runs import Runs


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("runs")
    write_all(WORLD, folder)
    return build.report([folder])


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Runs on 60 documents of POPE and on four of shapes, with hostile texts."""
    folder = tmp_path_factory.mktemp("page")
    write_runs(folder)
    return build.read([folder])
