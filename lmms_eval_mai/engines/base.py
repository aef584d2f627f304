"""What an engine is asked, what it answers, and the contract between.

Knows nothing of lmms-eval, of the cascade or of any benchmark.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import asyncio

    import PIL.Image

    from lmms_eval_mai.run.fingerprint import Identity

Side = Literal["small", "large"]
Stage = Literal["short", "think", "stage2", "transfer", "task"]
"""short: Eq. 5-6. think: Eq. 7 and 10. stage2: Eq. 8. transfer: Eq. 9. task: a foreign task's own prompt."""


@dataclass(frozen=True, slots=True)
class Image:
    """A decoded RGB image. `uuid` is the hash of its pixels: every engine's cache keys on it, so a later
    call of the same sample neither hashes nor encodes the image again."""

    pixels: "PIL.Image.Image"
    uuid: str
    encoded: "dict[int | None, asyncio.Future[str]]" = field(default_factory=dict, compare=False, repr=False)
    """Its encodings for servers (`pictures.py`), which live as long as the sample does."""


Block = str | Image


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a chat: its role and its texts and images in reading order."""

    role: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class CallKey:
    """Names one call within a run."""

    task: str
    doc_id: int
    repeat: int
    side: Side
    stage: Stage

    def __str__(self) -> str:
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.task} document {self.doc_id}{repeat}, {self.side} {self.stage}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A chat for one call. Images and question come first and the stage's text last, so that all calls
    of a sample share a prefix."""

    turns: tuple[Turn, ...]
    key: CallKey


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to decode. Greedy by default, as the paper's tasks ask."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    repetition_penalty: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    """Decode exactly `max_tokens`: for measurements with forced output lengths (Table 4)."""


@dataclass(frozen=True, slots=True)
class Call:
    """One finished request to one engine, and what it cost. The only thing that is metered."""

    key: CallKey
    text: str
    finish_reason: str
    """`stop`, or `length` when the token limit or the context cut it off."""
    prompt_tokens: int
    """Image tokens included."""
    cached_tokens: int
    """Those of the prompt that came from the engine's prefix cache."""
    output_tokens: int
    queued_s: float | None
    """Seconds from the engine's acceptance to its first scheduling. None: the engine does not tell."""
    ttft_s: float | None
    """Seconds from the request to the first output token, preparation of image and prompt included. None: the engine
    does not tell."""
    total_s: float
    """Seconds from the request to the last output token."""
    dropped_tokens: int = 0
    """Those of the thinking that were left out of the prompt so that it fits the context."""


class Engine(Protocol):
    """One model that answers.

    `generate` may be called any number of times at once; the order of answers is free. Cancelling it frees
    the slot. A prompt that does not fit or an image that cannot be prepared raises a `SampleError` for that
    call only; a dead engine raises `EngineDied` for every call in flight.
    """

    @property
    def name(self) -> str:
        """`small` or `large`, for messages."""

    def check(self) -> None:
        """Refuse what cannot work before anything is started. Raises `ArgumentError` or `EngineUnavailable`."""

    def plan(self) -> str:
        """Where it runs and with what, for people. Asked after `check`."""

    def identity(self) -> "Identity":
        """What of it can change an answer. Asked after `check`."""

    async def start(self) -> None:
        """Make ready to answer. Raises `EngineStartError`."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call: ...

    async def shorten(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        """For a prompt that does not fit, and thinking that stands in its last turn: the end of the thinking with which
        it fits, room for an answer included, and how many of its tokens that drops. Raises `PromptTooLong` if it does
        not fit without any."""

    async def close(self) -> None:
        """Stop and leave no process behind, in the middle of a start too. May be called more than once; `start`
        makes it ready again."""
