"""The plan of the GPU memory, as pure arithmetic: against a table of vLLM's arithmetic, and by properties."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.plans import MODELS, pair

from lmms_eval_mai.engines.vllm.planning.gpus import KNOWN_GPUS, Gpu, parse_gpus
from lmms_eval_mai.engines.vllm.planning.known_models import known_models
from lmms_eval_mai.engines.vllm.planning.memory import GIB, Limits, terms
from lmms_eval_mai.engines.vllm.planning.plan import (
    CONTEXTS,
    GPU_SHARE,
    SPARE_BYTES,
    EnginePlan,
    Plan,
    Request,
    Shortfall,
    budget_bytes,
    plan,
    vllm_defaults,
)


def needed(engine: EnginePlan) -> int:
    return engine.terms.needed()


@pytest.mark.parametrize(
    ("gpu", "models", "shares", "kv_gib", "starts"),
    [
        ("H100", ("2B", "8B"), (0.372, 0.528), (22.5, 21.8), True),
        ("L40S", ("2B", "8B"), (0.313, 0.587), (7.3, 6.5), True),
        ("L40S", ("4B", "8B"), (0.360, 0.540), (4.9, 4.3), None),
        ("A100-40GB", ("2B", "8B"), (0.295, 0.605), (5.0, 4.2), None),
        ("A100-40GB", ("4B", "8B"), (0.349, 0.551), (2.7, 2.1), False),
        ("RTX5090", ("2B", "8B"), (0.256, 0.644), (1.4, 0.6), False),
        ("RTX5090", ("4B", "8B"), (0.323, 0.577), (-0.9, -1.5), False),
        ("RTX4090", ("2B", "4B"), (0.360, 0.540), (1.9, 1.6), False),
        ("L4", ("2B", "4B"), (0.354, 0.546), (1.2, 1.0), False),
    ],
)
def test_terms_agree_with_a_reading_of_vllm_for_fixed_shares_and_a_context_of_32768(
    gpu: str, models: tuple[str, str], shares: tuple[float, float], kv_gib: tuple[float, float], starts: bool | None
) -> None:
    """`starts`: None if the reading called it borderline. Its figures are exact to 0.5 to 1 GiB."""
    card = parse_gpus(gpu)[0]
    max_num_seqs, batched_tokens = vllm_defaults(card)
    fits = []
    for model, share, expected in zip(models, shares, kv_gib, strict=True):
        found = terms(MODELS[model], Limits(32_768, 16_384, max_num_seqs, batched_tokens))
        kv_cache = share * card.usable_bytes - found.fixed()
        assert kv_cache / GIB == pytest.approx(expected, abs=0.75)
        fits.append(kv_cache >= found.one_sequence)
    assert starts is None or all(fits) == starts


@pytest.mark.parametrize(
    ("gpu", "models", "context"),
    [
        ("H100", ("2B", "8B"), 32_768),
        ("L40S", ("2B", "8B"), 32_768),
        ("L40S", ("4B", "8B"), 24_576),
        ("A100-40GB", ("2B", "8B"), 32_768),
        ("A100-40GB", ("4B", "8B"), 16_384),
        ("RTX5090", ("2B", "8B"), 8_192),
        ("RTX4090", ("2B", "4B"), 16_384),
        ("L4", ("2B", "4B"), 8_192),
    ],
)
def test_plan_fits_common_gpus(gpu: str, models: tuple[str, str], context: int) -> None:
    (card,) = parse_gpus(gpu)
    found = plan([card], pair(*models))
    assert isinstance(found, Plan)
    assert [one.limits.context for one in found.engines] == [context, context]
    assert sum(one.terms.fixed() + one.kv_cache_bytes for one in found.engines) <= GPU_SHARE * card.usable_bytes + 2
    assert all((one.max_pixels is None) == (context >= 24_576) for one in found.engines)


def test_models_that_take_turns_leave_space_for_the_sleeper() -> None:
    (card,) = parse_gpus("RTX4090")
    found = plan([card], pair("2B", "8B"), turns=True)
    assert isinstance(found, Plan) and found.engines[1].limits.context == 8_192
    assert all(one.share * card.usable_bytes <= card.free_bytes - 3 * GIB for one in found.engines)


def test_plan_leaves_spare_memory_unless_the_context_is_the_shortest() -> None:
    for gpu in KNOWN_GPUS:
        found = plan(parse_gpus(gpu), pair("2B", "4B"))
        if isinstance(found, Plan) and found.engines[0].limits.context > CONTEXTS[-1]:
            spare = [one.kv_cache_bytes - one.terms.one_sequence for one in found.engines]
            assert min(spare) >= SPARE_BYTES, gpu


def test_given_context_and_share_are_kept_and_no_estimate_refuses_them() -> None:
    (card,) = parse_gpus("16GiB")
    requests = pair("2B", "8B", context=20_000, share=0.45)
    found = plan([card], requests)
    assert isinstance(found, Plan)
    assert [(one.limits.context, one.share) for one in found.engines] == [(20_000, 0.45), (20_000, 0.45)]


def test_given_shares_of_more_than_the_free_memory_are_refused_also_with_a_given_context() -> None:
    (card,) = parse_gpus("H100")
    both = pair("2B", "8B", context=8_192, share=0.6)
    found = plan([card], both)
    assert isinstance(found, Shortfall)
    assert found.missing_bytes == pytest.approx(1.2 * card.usable_bytes - card.free_bytes, abs=2)
    assert isinstance(plan([card], both, turns=True), Plan)
    used = dataclasses.replace(card, free_bytes=card.free_bytes // 2)
    assert isinstance(plan([used], both[1:]), Shortfall)


def test_given_share_of_one_engine_leaves_the_rest_to_the_other() -> None:
    (card,) = parse_gpus("H100")
    small, large = pair("2B", "8B")
    found = plan([card], [dataclasses.replace(small, share=0.2), large])
    assert isinstance(found, Plan)
    assert found.engines[0].share == 0.2
    assert found.engines[1].share == pytest.approx(GPU_SHARE - 0.2, abs=0.01)


def test_given_shares_may_take_more_than_a_plan_takes_itself() -> None:
    (card,) = parse_gpus("H100")
    small, large = pair("2B", "8B")
    shares = (0.35, 0.6)
    found = plan(
        [card], [dataclasses.replace(one, share=share) for one, share in zip((small, large), shares, strict=True)]
    )
    assert isinstance(found, Plan) and tuple(one.share for one in found.engines) == shares
    assert isinstance(plan([card], [dataclasses.replace(large, share=0.95)]), Plan)
    # The CUDA contexts need memory too.
    assert isinstance(plan([card], [dataclasses.replace(large, share=1.0)]), Shortfall)


def test_given_share_that_is_too_small_shortens_the_context() -> None:
    (card,) = parse_gpus("H100")
    small, large = pair("2B", "8B")
    found = plan([card], [dataclasses.replace(small, share=0.11), large])
    assert isinstance(found, Plan) and found.engines[0].share == 0.11
    assert [one.limits.context for one in found.engines] == [12_288, 12_288]


def test_max_num_seqs_is_at_most_the_number_of_calls_of_the_run() -> None:
    found = plan(parse_gpus("H100"), pair("2B", "8B"), calls=100)
    assert isinstance(found, Plan) and [one.limits.max_num_seqs for one in found.engines] == [100, 100]


@pytest.mark.parametrize(("longest", "context"), [(20_000, 20_000), (4_096, 4_096), (40_960, 32_768)])
def test_context_of_a_plan_is_the_longest_of_the_model_if_that_is_below_32768(longest: int, context: int) -> None:
    requests = [
        dataclasses.replace(one, size=dataclasses.replace(one.size, max_context=longest)) for one in pair("2B", "4B")
    ]
    found = plan(parse_gpus("H100"), requests)
    assert isinstance(found, Plan) and [one.limits.context for one in found.engines] == [context, context]


@pytest.mark.parametrize("context", [1, 2, 3])
def test_context_of_a_few_tokens_has_a_plan(context: int) -> None:
    found = plan(parse_gpus("H100"), pair("2B", "8B", context=context))
    assert isinstance(found, Plan) and found.engines[0].limits.max_image_tokens == 1


def test_given_limit_of_pixels_above_that_of_the_checkpoint_counts() -> None:
    """vLLM measures the memory with the largest image that the arguments allow."""
    usual, larger = (plan(parse_gpus("H100"), pair("2B", "8B", max_pixels=pixels)) for pixels in (None, 1 << 26))
    assert isinstance(usual, Plan) and isinstance(larger, Plan)
    assert larger.engines[0].terms.vision_peak == 4 * usual.engines[0].terms.vision_peak
    assert larger.engines[0].max_pixels is None


def test_model_on_two_gpus_has_half_of_its_weights_and_of_its_kv_cache_on_each() -> None:
    gpus = parse_gpus("2x24GiB")
    small, large = pair("2B", "8B")
    both = dataclasses.replace(large, gpus=(0, 1), tensor_parallel=2)
    found = plan(gpus, [small, both])
    assert isinstance(found, Plan)
    assert found.engines[1].terms.weights == large.size.weight_bytes // 2
    assert found.engines[1].terms.one_sequence * 2 == terms(large.size, dataclasses.replace(
        found.engines[1].limits, tensor_parallel=1)).one_sequence  # fmt: skip


# --- properties -------------------------------------------------------------------------------------------

models = st.sampled_from(sorted(known_models()))
cards = st.builds(
    lambda total, used: Gpu("GPU", int(total * GIB), int(max(0.0, total * 0.985 - used) * GIB)),
    st.floats(8, 200),
    st.floats(0, 20),
)


@st.composite
def requests(draw: st.DrawFn, gpus: int) -> list[Request]:
    found = []
    for side in ("small", "large"):
        name = draw(models)
        tensor_parallel = draw(st.sampled_from([count for count in (1, 2, 4) if count <= gpus]))
        first = draw(st.integers(0, gpus - tensor_parallel))
        found.append(
            Request(
                side,  # type: ignore[arg-type]
                name,
                known_models()[name],
                tuple(range(first, first + tensor_parallel)),
                tensor_parallel,
                context=draw(st.none() | st.integers(1_024, 40_960)),
                share=draw(st.none() | st.floats(0.05, 0.9)),
                max_num_seqs=draw(st.none() | st.integers(1, 1_024)),
                enforce_eager=draw(st.booleans()),
            )
        )
    return found


@settings(max_examples=300, deadline=None)
@given(st.data(), st.lists(cards, min_size=1, max_size=4), st.booleans())
def test_plan_never_exceeds_a_gpu_and_never_gives_less_than_one_sequence(
    data: st.DataObject, gpus: list[Gpu], turns: bool
) -> None:
    wanted = [one for one in data.draw(requests(len(gpus)))]
    if any(one.trusted() for one in wanted):
        return
    found = plan(gpus, wanted, turns)
    if isinstance(found, Shortfall):
        assert found.missing_bytes > 0
        return
    for number, gpu in enumerate(gpus):
        here = [one for one in found.engines if number in one.request.gpus]
        for group in [[one] for one in here] if turns else [here]:
            taken = sum(one.terms.fixed() + one.kv_cache_bytes for one in group)
            all_given = all(one.request.share is not None for one in group)
            assert taken <= budget_bytes(gpu, len(here), turns, all_given) + 2
        assert all(one.share * gpu.usable_bytes >= needed(one) - 2 for one in here)
    for one in found.engines:
        assert one.sequences >= 1 - 1e-6 and one.limits.context == (one.request.context or one.limits.context)


@settings(max_examples=200, deadline=None)
@given(models, models, st.floats(8, 200), st.floats(0, 60))
def test_more_memory_never_gives_a_shorter_context(small: str, large: str, total: float, more: float) -> None:
    """Up to 70 GiB, where vLLM's own defaults become larger."""
    sizes = known_models()
    wanted = [Request("small", small, sizes[small], (0,), 1), Request("large", large, sizes[large], (0,), 1)]
    contexts = []
    for gib in (total, total + more):
        gpu = Gpu("GPU", int(gib * GIB), int(gib * 0.985 * GIB))
        found = plan([gpu], wanted)
        contexts.append(found.engines[1].limits.context if isinstance(found, Plan) else 0)
    if total < 70 <= total + more:
        return
    assert contexts[1] >= contexts[0]
