"""Which calls may run after a crash."""

import asyncio
from contextlib import ExitStack

import pytest

from lmms_eval_mai.engines.crash_admission import Admission, Ticket


async def count_running(admission: Admission, tickets: list[Ticket]) -> int:
    """Let all calls enter that may run together; return their number."""
    entering = [asyncio.ensure_future(admission.enter(ticket)) for ticket in tickets]
    await asyncio.sleep(0.01)
    for task in entering:
        task.cancel()
    await asyncio.gather(*entering, return_exceptions=True)
    return sum(ticket.running for ticket in tickets)


@pytest.mark.parametrize(("crashes", "expected"), [(0, 40), (1, 40), (2, 16), (3, 1), (4, 1)])
def test_the_more_crashes_the_fewer_calls_run_together(crashes: int, expected: int) -> None:
    async def run() -> int:
        admission = Admission()
        with ExitStack() as stack:
            tickets = [stack.enter_context(admission.ticket()) for _ in range(40)]
            for ticket in tickets:
                for _ in range(crashes):
                    admission.crashed(ticket)
            return await count_running(admission, tickets)

    assert asyncio.run(run()) == expected


def test_interrupted_calls_run_before_new_calls_and_those_with_most_crashes_first() -> None:
    async def run() -> list[int]:
        admission, order = Admission(), []

        async def call(crashes_before: int) -> None:
            with admission.ticket() as ticket:
                for _ in range(crashes_before):
                    admission.crashed(ticket)
                await asyncio.sleep(0.01)  # all calls exist before the first one enters
                await admission.enter(ticket)
                order.append(ticket.crashes)

        await asyncio.gather(*(call(crashes) for crashes in (0, 1, 2, 3, 0, 3)))
        return order

    assert asyncio.run(run()) == [3, 3, 2, 1, 0, 0]


def test_a_call_knows_whether_it_ran_alone_until_all_calls_of_the_crash_have_left() -> None:
    async def run() -> list[bool]:
        admission = Admission()
        with admission.ticket() as first, admission.ticket() as second:
            await admission.enter(first)
            await admission.enter(second)
            together = [admission.crashed(first), admission.crashed(second)]
            admission.leave(first)
            admission.leave(second)
            await admission.enter(first)
            return [*together, admission.crashed(first)]

    assert asyncio.run(run()) == [False, False, True]


def test_a_call_that_is_cancelled_while_it_waits_lets_the_others_run() -> None:
    async def run() -> bool:
        admission = Admission()

        async def interrupted_and_cancelled() -> None:
            with admission.ticket() as ticket:
                admission.crashed(ticket)
                await asyncio.sleep(60)

        async def new() -> bool:
            with admission.ticket() as ticket:
                await admission.enter(ticket)
                return ticket.running

        cancelled = asyncio.ensure_future(interrupted_and_cancelled())
        waiting = asyncio.ensure_future(new())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        cancelled.cancel()
        return await asyncio.wait_for(waiting, 5)

    assert asyncio.run(run())
