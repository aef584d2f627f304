"""What can go wrong, as sentences.

    MaiError
    ├── ArgumentError        a model argument is unknown or has a value that cannot work
    ├── EngineUnavailable    the engine cannot run on this machine (package or device missing)
    ├── EngineStartError     the engine could not be built or started
    ├── EngineDied           the engine is gone; raised for every call in flight
    └── SampleError          one sample cannot be answered; the engine and the other samples are fine
        ├── PromptTooLong    a prompt does not fit the model's context
        ├── UnreadableImage  an image cannot be decoded or prepared
        └── MissingAnswer    a scripted engine has no recorded answer for a call

Every message says what happened, with which value, and what to do.
"""


class MaiError(Exception):
    """Base of all errors of this package."""


class ArgumentError(MaiError, ValueError):
    """Raised when a model argument is unknown or has a value that cannot work."""


class EngineUnavailable(MaiError):
    """Raised when an engine cannot run on this machine, before anything is started."""


class EngineStartError(MaiError):
    """Raised when an engine could not be configured or started."""


class EngineDied(MaiError):
    """Raised for every call in flight when an engine is gone."""


class SampleError(MaiError):
    """Raised when one sample cannot be answered."""


class PromptTooLong(SampleError):
    """Raised when a prompt does not fit the model's context."""


class UnreadableImage(SampleError):
    """Raised when an image cannot be decoded or prepared for the model."""


class MissingAnswer(SampleError):
    """Raised when a scripted engine has no recorded answer for a call."""
