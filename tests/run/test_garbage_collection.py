"""The garbage collector while samples run."""

import gc

import pytest

from lmms_eval_mai.run.scheduler import NEW_OBJECTS, gc_frozen


@pytest.mark.parametrize(
    ("given", "inside"),
    [
        ((700, 10, 10), (NEW_OBJECTS, 10, 10)),
        ((50_000, 20, 20), (50_000, 20, 20)),  # other code has made it rare
        ((0, 10, 10), (0, 10, 10)),  # or has switched it off
    ],
)
def test_garbage_is_collected_less_often_while_samples_run_and_as_before_afterwards(
    given: tuple[int, int, int], inside: tuple[int, int, int]
) -> None:
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(*given)
        with gc_frozen():
            assert gc.get_threshold() == inside
        assert gc.get_threshold() == given
    finally:
        gc.set_threshold(*thresholds)
