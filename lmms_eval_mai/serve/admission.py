"""Limits how many requests the server has at the same time."""

import contextlib
import math
import time
from collections.abc import Iterator

from lmms_eval_mai.serve.errors import RequestError

LONGEST_RETRY_AFTER_S = 60
WEIGHT = 0.1
"""Weight of the last request in the mean time of a request."""


class Admission:
    """Counts the requests that are not answered yet. All calls must come from one thread.

    A request counts from the moment before its body is read. So the bodies of at most `max_open` + `max_queue` requests
    are in memory. The session answers `max_open` of them at the same time, and the others wait.
    """

    def __init__(self, max_open: int, max_queue: int) -> None:
        self.max_open = max_open
        self.max_queue = max_queue
        self.count = 0
        """Number of admitted requests."""
        self._mean_s = 1.0
        """Mean seconds of a request. The last ones count most."""

    @contextlib.contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request while the block runs. Raises `RequestError` with the status 429 if the queue is full."""
        if self.count >= self.max_open + self.max_queue:
            raise self._full()
        self.count += 1
        began = time.monotonic()
        try:
            yield
        finally:
            self.count -= 1
            self._mean_s += WEIGHT * (time.monotonic() - began - self._mean_s)

    def _full(self) -> RequestError:
        """Return the error for a full queue. Its Retry-After is about the time after which there is a free place."""
        wait_s = min(LONGEST_RETRY_AFTER_S, max(1, math.ceil(self._mean_s / self.max_open)))
        message = (
            f"The server has {self.count:,} requests: {self.max_open:,} at the same time (max_open_samples) and "
            f"{self.max_queue:,} that wait (--max-queue). Send the request again after {wait_s} s."
        )
        return RequestError(429, message, "queue_full", headers={"Retry-After": str(wait_s)})
