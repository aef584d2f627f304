"""The garbage collector while samples run."""

import gc

from lmms_eval_mai.run.scheduler import NEW_OBJECTS, gc_frozen


def test_garbage_is_collected_less_often_while_samples_run_and_as_before_afterwards() -> None:
    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(700, 10, 10)
        with gc_frozen():
            assert gc.get_threshold() == (NEW_OBJECTS, 10, 10)
        assert gc.get_threshold() == (700, 10, 10)
    finally:
        gc.set_threshold(*thresholds)


def test_a_collector_that_other_code_has_set_to_be_rare_or_off_stays_so() -> None:
    thresholds = gc.get_threshold()
    try:
        for given in ((50_000, 20, 20), (0, 10, 10)):
            gc.set_threshold(*given)
            with gc_frozen():
                assert gc.get_threshold() == given
    finally:
        gc.set_threshold(*thresholds)
