"""The report of all methods on yes-no questions with the paper's tables, which several test files look at."""

import pytest
from support.folders import WORLD, write_all
from support.tables import report

from lmms_eval_mai.analysis.report import Report


@pytest.fixture(scope="session")
def found(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("runs")
    write_all(WORLD, folder)
    return report([folder], ("paper",))
