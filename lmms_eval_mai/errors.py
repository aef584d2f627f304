"""All errors of this package.

Every message is a full sentence: what happened, with which value, and, where the user can act, what to do.

    MaiError
    ├── ArgumentError            a model argument is unknown or its value cannot work
    ├── EngineUnavailable        the engine cannot run on this machine (package or device missing)
    ├── EngineStartError         the engine could not be built or started
    ├── EngineCrashed            the engine of a call crashed, or does not answer any more
    │   └── EngineNotRunning     the engine was not started, or was closed
    ├── EndpointRefused          an endpoint refuses the key, has no credits for it, or lacks the model
    ├── StoreError               the call store cannot be read or written
    ├── TooManyErrors            more samples failed than `max_errors` allows
    └── SampleError              one sample cannot be answered; the engine and the other samples are fine
        ├── RequestRefused       an engine refuses a value of a request
        ├── PromptTooLong        a prompt does not fit the model's context
        ├── UnreadableImage      an image cannot be decoded or prepared
        ├── CallTimeout          a call took longer than `call_timeout`, or than `request_timeout` of an endpoint
        ├── EndpointBusy         an endpoint reports a temporary error, also after the last retry
        ├── EngineCrashedByCall  the engine crashes whenever it runs this call
        └── MissingAnswer        a scripted engine has no recorded answer for a call

No message contains a secret (`redaction.py`).
"""


class MaiError(Exception):
    """Base of all errors of this package."""


class ArgumentError(MaiError, ValueError):
    """Raised when a model argument is unknown or its value cannot work."""


class EngineUnavailable(MaiError):
    """Raised when an engine cannot run on this machine, before anything is started."""


class EngineStartError(MaiError):
    """Raised when an engine could not be configured or started."""


class EngineCrashed(MaiError):
    """Raised for a call whose engine crashed or stopped, or whose endpoint does not answer any more."""


class EngineNotRunning(EngineCrashed):
    """Raised for a call whose engine was not started, or was closed before or during the call."""


class EndpointRefused(MaiError):
    """Raised for a call whose endpoint refuses the key, has no credits for it, or lacks the model.

    Every other call would be refused too, and a retry does not help.
    """


class StoreError(MaiError):
    """Raised when the call store cannot be read or written."""


class TooManyErrors(MaiError):
    """Raised at the end of a run in which more samples failed than `max_errors` allows."""


class SampleError(MaiError):
    """Raised when one sample cannot be answered."""


class RequestRefused(SampleError):
    """Raised when an engine refuses a value of a request, such as a decoding argument or the order of its messages."""


class PromptTooLong(SampleError):
    """Raised when a prompt does not fit the model's context."""

    def __init__(self, text: str, context: int | None = None, length: int | None = None) -> None:
        """`context`: in tokens. `length`: the least tokens of the prompt. None: not known."""
        super().__init__(text)
        self.context, self.length = context, length


class UnreadableImage(SampleError):
    """Raised when an image cannot be decoded or prepared for the model."""


class CallTimeout(SampleError):
    """Raised when a call took longer than `call_timeout`, or a request longer than `request_timeout` of its endpoint.

    The engine has dropped the call.
    """


class EndpointBusy(SampleError):
    """Raised when an endpoint still reported a temporary error (status 408, 409, 425, 429 or 5xx) after the last
    retry."""

    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        """`retry_after_s`: seconds that the endpoint asked to wait (`Retry-After`), 0 if it did not ask."""
        super().__init__(text)
        self.retry_after_s = retry_after_s


class EngineCrashedByCall(SampleError):
    """Raised when the engine crashed three times during one call, the last time while it ran no other call."""


class MissingAnswer(SampleError):
    """Raised when a scripted engine has no recorded answer for a call."""
