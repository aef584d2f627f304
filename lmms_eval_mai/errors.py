"""All errors of this package. Every message is a full sentence: what happened, with which value, and what to do.

    MaiError
    ├── ArgumentError            a model argument is unknown or its value cannot work
    ├── EngineUnavailable        the engine cannot run on this machine (package or device missing)
    ├── EngineStartError         the engine could not be built or started
    ├── EngineCrashed            the engine has crashed; raised for every call in flight
    ├── JournalError             the journal cannot be read or written
    ├── TooManyErrors            more samples failed than `max_errors` allows
    └── SampleError              one sample cannot be answered; the engine and the other samples are fine
        ├── PromptTooLong        a prompt does not fit the model's context
        ├── UnreadableImage      an image cannot be decoded or prepared
        ├── CallTimeout          a call took longer than `call_timeout`
        ├── EngineCrashedByCall  the engine crashes on this call and on no other
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
    """Raised for every call in flight when an engine has crashed."""


class JournalError(MaiError):
    """Raised when the journal cannot be read or written."""


class TooManyErrors(MaiError):
    """Raised at the end of a run in which more samples failed than `max_errors` allows."""


class SampleError(MaiError):
    """Raised when one sample cannot be answered."""


class PromptTooLong(SampleError):
    """Raised when a prompt does not fit the model's context."""


class UnreadableImage(SampleError):
    """Raised when an image cannot be decoded or prepared for the model."""


class CallTimeout(SampleError):
    """Raised when a call took longer than `call_timeout`. The engine has dropped the call."""


class EngineCrashedByCall(SampleError):
    """Raised when the engine crashed twice during one call, the second time while it ran no other call."""


class MissingAnswer(SampleError):
    """Raised when a scripted engine has no recorded answer for a call."""
