"""Decides which calls may run on an engine that crashes.

Normally all calls run. A crash interrupts every call that runs at that moment, and each of them may be its cause. The
interrupted calls are retried before any new call runs, those with the most crashes first:

    crashes of the call    calls that run at the same time
    0 or 1                 no limit
    2                      16
    3 or more              1

So one crash costs one retry of each interrupted call, and a call that always crashes the engine ends up alone.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

LIMITS = {0: None, 1: None, 2: 16}
"""Crashes of a call -> number of such calls that may run at the same time. None: no limit. 3 or more crashes: 1."""


@dataclass(eq=False)
class Ticket:
    """The state of one call. Only `Admission` changes it."""

    crashes: int = 0
    """Number of crashes that have interrupted this call."""
    running: bool = False


class Admission:
    """Counts the calls that run and the calls that crashes have interrupted."""

    def __init__(self) -> None:
        self._running = 0
        self._interrupted: Counter[int] = Counter()
        """Crashes -> number of unfinished calls with that many crashes. Calls without a crash are not counted."""
        self._waiting: list[asyncio.Future[None]] = []

    @contextlib.contextmanager
    def ticket(self) -> Iterator[Ticket]:
        """Yield the ticket of a new call. The call is finished at the end of the block, also if it is cancelled."""
        ticket = Ticket()
        try:
            yield ticket
        finally:
            self._count_interrupted(ticket.crashes, -1)
            self.leave(ticket)

    async def enter(self, ticket: Ticket) -> None:
        """Wait until the call may run. From then on it counts as running."""
        while not self._may_run(ticket):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        ticket.running = True
        self._running += 1

    def crashed(self, ticket: Ticket) -> bool:
        """Record that the engine crashed while the call ran. Returns whether no other call ran.

        The call counts as running until it leaves, so that every call of one crash sees the others.
        """
        self._count_interrupted(ticket.crashes, -1)
        ticket.crashes += 1
        self._count_interrupted(ticket.crashes, +1)
        return self._running == 1

    def leave(self, ticket: Ticket) -> None:
        """Record that the call does not run any more, and wake the calls that wait."""
        if ticket.running:
            ticket.running = False
            self._running -= 1
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    def is_idle(self) -> bool:
        """Return whether no call runs."""
        return self._running == 0

    def _may_run(self, ticket: Ticket) -> bool:
        most_crashes = max(self._interrupted, default=0)
        limit = LIMITS.get(most_crashes, 1)
        return ticket.crashes == most_crashes and (limit is None or self._running < limit)

    def _count_interrupted(self, crashes: int, change: int) -> None:
        if crashes == 0:
            return
        self._interrupted[crashes] += change
        if self._interrupted[crashes] == 0:
            del self._interrupted[crashes]
