"""All errors of this package.

Every message is a full sentence: what happened, with which value, and, where the user can act, what to do.

    MaiError
    ├── ArgumentError            a model argument is unknown or its value cannot work
    ├── EngineUnavailable        the engine cannot run on this machine (package or device missing)
    ├── EngineStartError         the engine could not be built or started
    ├── EngineCrashed            the engine crashed, or does not answer: every call in flight fails
    │   └── EngineNotRunning     the engine was not started, or was closed
    ├── EndpointRefused          an endpoint refuses the key, has no credits, or lacks the model: all calls fail
    ├── StoreError               the call store cannot be read or written
    ├── TooManyErrors            more samples failed than `max_errors` allows
    └── SampleError              one sample cannot be answered; the engine and the other samples are fine
        ├── RequestRefused       an engine refuses a value of a request
        ├── PromptTooLong        a prompt does not fit the model's context
        ├── UnreadableImage      an image cannot be decoded or prepared
        ├── CallTimeout          a call took too long and was dropped (`call_timeout`, `request_timeout`)
        ├── EndpointBusy         an endpoint reports a temporary error, also after the last retry
        ├── EngineCrashedByCall  the engine crashed three times in this call, the last time without another
        └── MissingAnswer        a scripted engine has no recorded answer for a call

No message contains a secret (`redaction.py`).
"""


class MaiError(Exception): ...


class ArgumentError(MaiError, ValueError): ...


class EngineUnavailable(MaiError): ...


class EngineStartError(MaiError): ...


class EngineCrashed(MaiError): ...


class EngineNotRunning(EngineCrashed): ...


class EndpointRefused(MaiError): ...


class StoreError(MaiError): ...


class TooManyErrors(MaiError): ...


class SampleError(MaiError): ...


class RequestRefused(SampleError): ...


class PromptTooLong(SampleError):
    def __init__(self, text: str, context: int | None = None, length: int | None = None) -> None:
        """`context`: in tokens. `length`: the least tokens of the prompt. None: not known."""
        super().__init__(text)
        self.context, self.length = context, length


class UnreadableImage(SampleError): ...


class CallTimeout(SampleError): ...


class EndpointBusy(SampleError):
    def __init__(self, text: str, retry_after_s: float = 0.0) -> None:
        """`retry_after_s`: seconds that the endpoint asked to wait (`Retry-After`), 0 if it did not ask."""
        super().__init__(text)
        self.retry_after_s = retry_after_s


class EngineCrashedByCall(SampleError): ...


class MissingAnswer(SampleError): ...
