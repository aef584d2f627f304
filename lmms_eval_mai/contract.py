"""The engine contract: requests to an engine, its results, and its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    import PIL.Image

Side = Literal["small", "large"]
SIDES: tuple[Side, Side] = ("small", "large")

Stage = Literal["short", "think", "stage2", "score", "transfer", "task"]
"""short: Eq. 5-6. think: Eq. 7 and 10. stage2: Eq. 8. score: the prefill that scores the thinking for Eq. 12. transfer:
Eq. 9 and 13. task: the own prompt of another lmms-eval task."""

Identity = dict[str, str]
"""Everything about one engine that can change an answer: kind and version, model, checkpoint, arguments."""


@dataclass(frozen=True)
class EngineConfig:
    """The configuration of one of the two engines."""

    side: Side
    engine: str
    """Kind of engine: a key of `engines.build.ENGINES`."""
    model: str
    """vllm, transformers: Hugging Face name or path of a checkpoint. openai: address of an endpoint, or a list of
    addresses. scripted: path of a script."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the engine itself."""
    attention: bool = False
    """Whether the run asks this engine for attention weights (`Prompt.attention`)."""


@dataclass(frozen=True, eq=False)
class Image:
    """A decoded RGB image."""

    pixels: "PIL.Image.Image"
    uuid: str
    """The hash of the pixels. vLLM's image cache and the journal use it, so vLLM does not prepare the image again for a
    later call of the sample."""


ContentPart = str | Image


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a chat: its role, and its texts and images in reading order."""

    role: str
    content: tuple[ContentPart, ...]


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
class AttentionRequest:
    """The attention weights that a call must return (Eq. 12)."""

    layers: tuple[int, ...]
    """Decoder layers, numbered from 1."""
    text: str | None = None
    """A part of the last message. The engine returns the attention of the last prompt token to the tokens of this text.
    None: the engine returns the attention of the last token that was fed to the model to the tokens of the call's own
    output."""


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """The attention of one token (the query) to each token of a text."""

    tokens: tuple[str, ...]
    """The texts of the tokens in order. Joined, they are the text exactly: the characters of a token that begins before
    the text or ends after it are cut to the text, and a character that is spread over several tokens belongs to the
    last of them."""
    weights: tuple[tuple[float, ...], ...]
    """One row per requested layer: the attention probability of each token, which is the softmax over the whole
    context, averaged over all heads. Not normalised. An output token that was never fed to the model has weight 0."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probabilities of the generated tokens of a call, before temperature, penalties and other changes."""

    texts: tuple[str, ...]
    """The text of each token. Special tokens may have the text ""."""
    values: tuple[float, ...]
    """The natural logarithm of the probability that the model gave to each token, 0 or less."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The chat of one call. Images and question come first and the stage's text comes last, so that all calls of a
    sample share a prefix."""

    messages: tuple[Message, ...]
    key: CallKey
    attention: AttentionRequest | None = None
    """The attention weights that the call must return (`Call.attention`). None: none."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Decoding arguments. The default is greedy decoding, as in the paper's tasks."""

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all tokens."""
    repetition_penalty: float = 1.0
    seed: int | None = None
    ignore_eos: bool = False
    """Decode exactly `max_tokens` tokens, for measurements with forced output lengths (Table 4)."""
    min_p: float = 0.0
    presence_penalty: float = 0.0
    """Subtracted from the logit of each token that the answer has already. The prompt does not count, as in vLLM."""
    frequency_penalty: float = 0.0
    """Like `presence_penalty`, but times the number of times that the answer has the token."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer. They are not part of it."""


@dataclass(frozen=True, slots=True)
class Call:
    """One finished request to one engine, and its cost. All token counts of a run are sums over its calls."""

    key: CallKey
    text: str
    finish_reason: str
    """`stop`; `length` if the token limit or the context cut the answer off; `repetition` if vLLM found a repeating
    pattern."""
    prompt_tokens: int
    """Image tokens included."""
    cached_tokens: int
    """Prompt tokens that came from the engine's prefix cache."""
    output_tokens: int
    """All generated tokens, the end-of-sequence token included."""
    queued_s: float | None
    """Seconds from the moment the engine accepts the call until it first schedules the call. None: the engine does not
    report it."""
    ttft_s: float | None
    """Seconds from the request to the first output token, preparation of image and prompt included. None: the engine
    does not report it."""
    total_s: float
    """Seconds from the request to the last output token."""
    dropped_tokens: int = 0
    """Thinking tokens that were left out so that the prompt fits the context."""
    answer_tokens: int | None = None
    """Tokens of the extracted answer, which is a part of the text. None: not known. `paper.sample_run` fills it in."""
    proposed_tokens: int | None = None
    """Speculative decoding: tokens that were drafted (Appendix B.4). None: no drafts, or not reported."""
    accepted_tokens: int | None = None
    """Speculative decoding: drafted tokens that the model accepted, those after a stop text included."""
    target_calls: int | None = None
    """Speculative decoding: forward passes of the model itself. None: no drafts, or not reported."""
    attention: TokenWeights | None = None
    """The attention weights that `Prompt.attention` asks for. None: it asks for none."""
    started_at: float | None = None
    """When the request was made, in seconds since 1970 (Unix time), so that `started_at + total_s` is its end. Retries
    do not count. None: not known, or the call is shared. `run.measured_engine` fills it in."""
    image_tokens: int | None = None
    """The prompt tokens that stand for images; 0 without an image. None: the engine does not report it."""
    logprobs: TokenLogprobs | None = None
    """The log-probabilities of all generated tokens, as the engine reports them. `run.measured_engine` fills in the
    next two fields and then drops this one, which would fill traces and journals. None: the engine does not report
    it."""
    answer_logprob: float | None = None
    """The sum of the log-probabilities of the tokens of the extracted answer, without the brackets. So its exponential
    is the probability that the model gave to its answer. None: not known, or there is no answer."""
    min_logprob: float | None = None
    """The smallest of these log-probabilities."""
    shared: bool = False
    """Whether another run of the same command made this call and this run only found it again. The tokens are those of
    that call. The call has no times: `total_s` is 0, and the other times are None."""


class Engine(Protocol):
    """One running model.

    `generate` may be called any number of times at once; answers may come in any order. Cancelling a call frees its
    slot. A prompt that does not fit, or an image that cannot be prepared, raises a `SampleError` for that call only. A
    crashed engine raises `EngineCrashed` for every call in flight.
    """

    @property
    def side(self) -> str:
        """`small` or `large`, for messages."""

    def validate(self) -> None:
        """Refuse a configuration that cannot work, before anything is started. Raises `ArgumentError` or
        `EngineUnavailable`."""

    def describe(self) -> str:
        """Return where the engine runs and with which settings, for people. Call `validate` first."""

    def identity(self) -> Identity:
        """Return everything about the engine that can change an answer. Call `validate` first."""

    def starts_alone(self) -> bool:
        """Return True if this engine must not start at the same time as another engine that returns True. Call
        `validate` first."""

    def layers(self) -> int | None:
        """Return the number of the model's decoder layers. None: the engine cannot give attention weights. Call
        `validate` first."""

    async def start(self) -> None:
        """Start the engine. Raises `EngineStartError`."""

    def is_up(self) -> bool:
        """Return whether the engine answers calls. It does not before `start`, after `close`, and after a crash. An
        engine that uses servers waits for them, so it is up even if none answers."""

    async def generate(self, prompt: Prompt, sampling: Sampling) -> Call:
        """Return the model's answer. Raises a `SampleError` or `EngineCrashed`."""

    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        """Return the longest final part of `thinking` that fits the context with `prompt`, and the number of dropped
        tokens.

        `thinking` must be part of the last message. Space for an answer is kept free. Raises `PromptTooLong` if the
        prompt does not fit even without thinking.
        """

    def count_tokens(self, text: str) -> int | None:
        """Return the number of the model's tokens in a text. None: the engine has no tokenizer, or was never
        started."""

    async def clear_caches(self) -> None:
        """Forget the prompts and images of earlier calls, so that the next call costs as much as a first one. No call
        may be in flight. Has no effect on an engine without such caches, and on a server."""

    async def close(self) -> None:
        """Stop the engine, also during its start, and leave no process behind. May be called more than once; `start`
        starts the engine again."""
