"""One renderer process, and the thread that sends requests to it and restarts it if it crashes or hangs.

A process of its own, and not a thread: threads that prepare images wait for each other (vLLM issue #58266).
"""

import queue
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from multiprocessing.reduction import ForkingPickler
from typing import Any

from loguru import logger

from lmms_eval_mai.contract import Image, Message
from lmms_eval_mai.engines.vllm import shared_memory
from lmms_eval_mai.engines.vllm.renderer_child import ClearCache, Failed, ImagesMissing, Render, sent_part
from lmms_eval_mai.engines.vllm.renderer_start import RendererChild
from lmms_eval_mai.redaction import error_text

SENT_AHEAD = 2
"""Requests that the process has at the same time: it works on one, and the next one is ready."""
ATTEMPTS = 2
"""A prompt fails if the process crashes or hangs as often while it renders the prompt. No further start is tried after
as many failed ones."""
ANSWER_TIMEOUT_S = 120.0
"""A process that renders one prompt for longer hangs, and is restarted. The slowest images take seconds."""
KNOWN_IMAGES = 100_000
"""Names of images that this side remembers as prepared."""
CLOSED = "The renderer process was closed."


class RendererCrashed(Exception):
    """Raised for a prompt during which the renderer process crashed or hung `ATTEMPTS` times."""


class RendererStopped(Exception):
    """Raised for a prompt that this process must render: the renderer process has ended, or the prompt or its answer
    cannot be sent."""


@dataclass(eq=False)
class _Job:
    """One request and its future answer."""

    messages: tuple[Message, ...] | None
    """None: empty the cache."""
    future: "Future[Any]" = field(default_factory=Future)
    crashes: int = 0
    with_all_pixels: bool = False
    """The process does not have a prepared image any more."""
    memory: list[int] = field(default_factory=list)
    """Of the message to the process."""


class RendererProcess:
    """Renders chats in a process of its own.

    The process starts at once and imports vLLM, for example while an engine starts. It renders after `configure`.
    """

    def __init__(self) -> None:
        self.answer_timeout_s = ANSWER_TIMEOUT_S
        self._child = RendererChild()
        self._thread: threading.Thread | None = None
        self._configuration = b""
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._again: deque[_Job] = deque()
        """Jobs to send before those in the queue."""
        self._sent: deque[_Job] = deque()
        """The process works on the first one."""
        self._spare = shared_memory.SpareMemory()
        self._known: set[str] = set()
        """Images that the process has prepared. It may have dropped some of them."""
        self._lock = threading.Lock()
        self._closed = False
        self._stopped = False

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def configure(self, vllm_config: Any) -> "Future[None]":
        """Let the process load tokenizer and processor. The future is done when it has tried."""
        # As multiprocessing does: vLLM registers there how a configuration with code of its own is sent.
        self._configuration = bytes(ForkingPickler.dumps(vllm_config))
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="mai-renderer", daemon=True)
        self._thread.start()
        return ready

    def render(self, messages: tuple[Message, ...]) -> "Future[Any]":
        """Return the future input of vLLM's engine. It may fail with vLLM's errors, `RendererCrashed` or
        `RendererStopped`."""
        return self._submit(_Job(messages))

    def clear_cache(self) -> "Future[None]":
        """Empty the cache of prepared images after the prompts that were submitted before."""
        return self._submit(_Job(None))

    def _submit(self, job: _Job) -> "Future[Any]":
        with self._lock:
            if not self._closed:
                self._jobs.put(job)
                return job.future
        _refuse(job, CLOSED)
        return job.future

    def close(self) -> None:
        """End the process and the thread. Returns when both have ended."""
        with self._lock:
            self._closed = True  # from now on, `_submit` puts no job into the queue
            self._child.kill()
        self._jobs.put(None)
        if self._thread not in (None, threading.current_thread()):  # garbage may be collected in any thread
            self._thread.join()
        self._child.channel.close()

    # --- the thread -------------------------------------------------------------------------------------

    def _run(self, ready: "Future[None]") -> None:
        reason = CLOSED
        try:
            self._load(start=False)
            ready.set_result(None)
            self._work()
        except Exception as error:  # without this thread, no job would end
            reason = f"The thread of a renderer process failed: {error_text(error)}"
            logger.warning(f"{reason}. The main process renders its prompts, which is slower.")
        finally:
            self._end(reason)
            if not ready.done():
                ready.set_result(None)

    def _work(self) -> None:
        while not self._closed:
            try:
                self._step()
            except TimeoutError:
                self._recover(hangs=True)
            except (EOFError, ConnectionError):
                self._recover(hangs=False)

    def _end(self, reason: str) -> None:
        """End the process and all jobs, and free the memory."""
        with self._lock:
            self._closed = True
            self._child.kill()
        for job in self._sent:
            self._spare.put(job.memory)
        self._spare.close()
        for job in (*self._sent, *self._again):
            _refuse(job, reason)
        while not self._jobs.empty():
            waiting = self._jobs.get()
            if waiting is not None and waiting.future.set_running_or_notify_cancel():
                _refuse(waiting, reason)

    def _step(self) -> None:
        """Send the next job, or receive an answer if there is no job or enough are sent."""
        if len(self._sent) < SENT_AHEAD and (job := self._next_job()) is not None:
            self._send(job)
        elif self._sent:
            self._receive()

    def _next_job(self) -> _Job | None:
        """Return the next job whose caller waits for it. Waits for a job if none is sent."""
        if self._again:
            return self._again.popleft()
        try:
            job = self._jobs.get(block=not self._sent)
        except queue.Empty:
            return None
        return job if job is not None and job.future.set_running_or_notify_cancel() else None

    def _send(self, job: _Job) -> None:
        if self._stopped:
            _refuse(job, "The renderer process cannot be started again.")
            return
        self._sent.append(job)
        try:
            job.memory = shared_memory.send(self._child.channel, self._request(job), self._spare)
        except ConnectionError:  # the process had ended before it got this job
            self._sent.remove(job)
            self._again.appendleft(job)
            raise
        except Exception as error:  # the pixels cannot be read, or the system has no memory or descriptors left
            self._sent.remove(job)
            job.future.set_exception(RendererStopped(error_text(error)))

    def _request(self, job: _Job) -> Render | ClearCache:
        if job.messages is None:
            self._known.clear()
            return ClearCache()
        known = set() if job.with_all_pixels else self._known
        return Render(
            tuple(Message(one.role, tuple(sent_part(part, known) for part in one.content)) for one in job.messages)
        )

    def _receive(self) -> None:
        self._child.channel.settimeout(self.answer_timeout_s)
        try:
            answer = shared_memory.receive(self._child.channel)
        except (EOFError, ConnectionError, TimeoutError):
            raise
        except Exception as error:  # the system has no memory or descriptors left
            answer = Failed(RendererStopped(error_text(error)), None)
        job = self._sent.popleft()
        self._spare.put(job.memory)
        if isinstance(answer, ImagesMissing):
            job.with_all_pixels = True
            self._again.append(job)
        elif isinstance(answer, Failed):
            answer.error.__cause__ = answer.cause
            job.future.set_exception(answer.error)
        else:
            self._remember_images(job)
            job.future.set_result(answer)

    def _remember_images(self, job: _Job) -> None:
        if len(self._known) > KNOWN_IMAGES:
            self._known.clear()
        for message in job.messages or ():
            self._known.update(part.uuid for part in message.content if isinstance(part, Image))

    # --- crashes and hangs ----------------------------------------------------------------------------------------

    def _recover(self, hangs: bool) -> None:
        """Restart the process. All jobs that it had are sent again, except one that crashed or stopped it
        repeatedly."""
        if self._closed:
            return
        self._child.kill()
        problem = (
            f"hangs (no answer for {self.answer_timeout_s:g} s)" if hangs else f"crashed ({self._child.exit_reason()})"
        )
        logger.warning(f"A renderer process {problem}. It is restarted, and its prompts are rendered again.")
        self._known.clear()
        for job in self._sent:
            self._spare.put(job.memory)
        if self._sent:
            self._sent[0].crashes += 1
            if self._sent[0].crashes == ATTEMPTS:
                crash = f"The renderer process crashed or hung {ATTEMPTS} times while it rendered this prompt."
                self._sent.popleft().future.set_exception(RendererCrashed(crash))
        self._again.extendleft(reversed(self._sent))
        self._sent.clear()
        self._load(start=True)

    def _load(self, start: bool) -> None:
        """Let the process load the configuration. `start`: start a process first."""
        for _ in range(ATTEMPTS):
            reason = self._try_to_load(start)
            if reason is None or self._closed:
                return
            start = True
        self._stopped = True
        logger.warning(
            f"A renderer process does not start ({reason}). The main process renders its prompts, which is slower."
        )

    def _try_to_load(self, start: bool) -> str | None:
        """Return the reason if the process cannot load the configuration."""
        try:
            if start and not self._start():
                return None
            shared_memory.send(self._child.channel, self._configuration)
            answer = shared_memory.receive(self._child.channel)
        except (EOFError, ConnectionError):
            self._child.kill()
            return self._child.exit_reason()
        except Exception as error:  # no memory or descriptors left, or an answer that cannot be read
            return error_text(error)
        return error_text(answer.error) if isinstance(answer, Failed) else None

    def _start(self) -> bool:
        """Start a process in place of the last one. Returns False if `close` was called."""
        with self._lock:
            if not self._closed:
                self._child.kill()
                self._child.channel.close()
                self._child = RendererChild()
            return not self._closed


def _refuse(job: _Job, reason: str) -> None:
    """End a job that the process will not do. Without the process there is no cache to empty."""
    if job.messages is None:
        job.future.set_result(None)
    else:
        job.future.set_exception(RendererStopped(reason))
