"""Methods in YAML files, and that a method survives its own record. `test_refusals.py` has what is refused."""

from pathlib import Path

import pytest
import yaml

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.method.files import load, read_steps
from lmms_eval_mai.method.methods import METHODS, steps_of


def test_a_named_method_survives_its_record_and_a_file_has_its_name_only_with_its_steps(tmp_path: Path) -> None:
    for name, method in METHODS.items():
        assert read_steps(name, steps_of(method), "") == method
    for name in ("mai", "full_rt"):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(steps_of(METHODS["mai"])))
    assert load(tmp_path / "mai.yaml") == METHODS["mai"]
    with pytest.raises(ArgumentError, match="name of another method"):
        load(tmp_path / "full_rt.yaml")
