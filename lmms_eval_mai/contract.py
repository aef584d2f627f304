"""The engine contract: requests to an engine, its results, and its configuration."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import PlainSerializer, TypeAdapter

if TYPE_CHECKING:
    import PIL.Image

Side = Literal["small", "large"]
SIDES: tuple[Side, Side] = ("small", "large")

CallPrompt = Literal["simple", "task", "explain", "think", "native", "stage2", "score", "transfer"]
Variant = Literal["S", "E", "R", "native"]
"""Simple, Explain or Reasoning prompt, or Simple with the model's own thinking switched on."""


@dataclass(frozen=True)
class PromptRow:
    """What a call asks: whether for a short answer or for a thinking, and with which prompt of a task."""

    variant: Variant | None = None
    is_short: bool = False
    """Whether it asks for a short answer without thinking. Such a call returns log-probabilities."""
    thinks: bool = False
    two_stages: bool = False
    """Whether the thinking is the whole text, after which a second call may answer (S2, Appendix B.3)."""


PROMPTS: dict[CallPrompt, PromptRow] = {
    "simple": PromptRow("S", is_short=True),  # Eq. 5 and 6
    "task": PromptRow(is_short=True),  # the prompt of another lmms-eval task
    "explain": PromptRow("E", thinks=True, two_stages=True),  # Eq. 7 and 10: with prompt E
    "think": PromptRow("R", thinks=True, two_stages=True),  # with prompt R; the ask "think" may be any of the three
    "native": PromptRow("native", thinks=True),  # the prompt of a short answer, and the model thinks by itself
    "stage2": PromptRow(),  # Eq. 8
    "score": PromptRow(),  # the prefill that scores the thinking for Eq. 12
    "transfer": PromptRow(),  # Eq. 9 and 13
}
"""What a call asks, in the order of a trace."""


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
    native: bool = False
    """Whether the run lets this model think by itself (`Prompt.native`)."""
    stop_repeats: bool = False
    """Whether the run ends a thinking of this model that repeats itself (`Sampling.repetition_detection`)."""

    @property
    def is_endpoint(self) -> bool:
        """Whether the model is on a server, which this process neither starts nor restarts."""
        return self.engine == "openai"


@dataclass(frozen=True, eq=False)
class Image:
    """A decoded RGB image."""

    pixels: "PIL.Image.Image"
    uuid: str
    """The hash of the pixels. vLLM's image cache and the call store use it, so vLLM does not prepare the image again
    for a later call of the sample."""
    encodings: list[Any] = field(default_factory=list, repr=False)
    """The PNG for servers, which both engines share, once it is made. It is freed with the image."""


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
    prompt: CallPrompt
    of: str = ""
    """The call whose thinking is in the prompt, such as `small.think`. Empty: none is."""

    @property
    def name(self) -> str:
        """What is asked of which model, such as `small.think`."""
        return f"{self.side}.{self.prompt}"

    def __str__(self) -> str:
        repeat = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.task} document {self.doc_id}{repeat}, {self.side} {self.prompt}"


@dataclass(frozen=True, slots=True)
class AttentionRequest:
    """The attention weights of the last prompt token that a call must return (Eq. 12). Such a call has no output."""

    layer: int
    """The decoder layer, numbered from 1."""
    text: str
    """A part of the last message. The weights are those of its tokens."""


@dataclass(frozen=True, slots=True)
class TokenWeights:
    """The attention of one token (the query) to each token of a text."""

    tokens: tuple[str, ...]
    """The texts of the tokens in order. Joined, they are the text exactly: the characters of a token that begins before
    the text or ends after it are cut to the text, and a character that is spread over several tokens belongs to the
    last of them."""
    weights: tuple[float, ...]
    """The attention probability of each token, which is the softmax over the whole context, averaged over all heads.
    Not normalised."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probabilities of the generated tokens of a call, before temperature, penalties and other changes."""

    texts: tuple[str, ...]
    """The text of each token. Special tokens may have the text ""."""
    values: tuple[float, ...]
    """The natural logarithm of the probability that the model gave to each token, 0 or less."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The chat of one call. Images and question come first and the text of the call comes last, so that all calls of a
    sample share a prefix."""

    messages: tuple[Message, ...]
    key: CallKey
    attention: AttentionRequest | None = None
    """The attention weights that the call must return (`Call.attention`). None: none."""
    logprobs: bool = False
    """Whether the call returns the log-probabilities of its tokens (`Call.logprobs`). They cost vLLM a fifth of its
    speed, so only short answers ask for them."""

    @property
    def native(self) -> bool:
        """Whether the model's own thinking is on, for models whose chat template can switch it."""
        return self.key.prompt == "native"


@dataclass(frozen=True, slots=True)
class Repetition:
    """When an output ends because it repeats itself: its last tokens are one pattern, `min_count` times. The names and
    the rule are vLLM's. A pattern of 3 tokens is one of 33 too, so each loop of up to 96 tokens ends.

    At 8 tokens, a list of 20 zeros, a matrix of 8 x 8 zeros or 8 equal rows of a table would end a thinking. At 32,
    none of 48 such texts does (docs/measurements.md)."""

    min_pattern_size: int = 32
    max_pattern_size: int = 96
    min_count: int = 6

    def ends(self, tokens: Sequence[int]) -> bool:
        """Return whether an output ends here. `tokens`: those of the output."""
        times, largest = self.min_count, min(self.max_pattern_size, len(tokens) // self.min_count)
        return any(
            tokens[-1] == tokens[-1 - size] and tokens[-times * size : -size] == tokens[-(times - 1) * size :]
            for size in range(self.min_pattern_size, largest + 1)
        )


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
    thinking_token_budget: int | None = field(default=None, repr=False)
    """The most tokens of the model's own thinking. Then the model must answer. None: no limit of its own."""
    repetition_detection: Repetition | None = field(default=None, repr=False)
    """When an output that repeats itself ends. None: at its limit."""


Seconds = Annotated[float, PlainSerializer(lambda seconds: round(seconds, 6))]


@dataclass(frozen=True, slots=True)
class Reply:
    """What an engine returns for one request."""

    text: str
    """The output. If it begins with the model's own thinking, only what follows that."""
    finish_reason: str
    """`stop`; `length` if the token limit or the context cut the answer off; `repetition` if the output
    repeated itself (`Sampling.repetition_detection`)."""
    prompt_tokens: int
    """Image tokens included."""
    cached_tokens: int
    """Prompt tokens that came from the engine's prefix cache."""
    output_tokens: int
    """All generated tokens, the end-of-sequence token included."""
    queued_s: Seconds | None
    """Seconds from the moment the engine accepts the call until it first schedules the call. None: the engine does not
    report it."""
    ttft_s: Seconds | None
    """Seconds from the request to the first output token, preparation of image and prompt included. None: the engine
    does not report it."""
    total_s: Seconds
    """Seconds from the request to the last output token."""
    thinking: str | None = None
    """The model's own thinking, without its marks. None: it is off, or the model did not think. If the output ends
    inside the thinking, `text` is empty."""
    image_tokens: int | None = None
    """The prompt tokens that stand for images; 0 without an image. None: the engine does not report it."""
    attention: TokenWeights | None = None
    """The attention weights that `Prompt.attention` asks for. None: it asks for none."""
    logprobs: TokenLogprobs | None = None
    """The log-probabilities of all generated tokens, if `Prompt.logprobs` asks for them and the engine reports them.
    `Pair.call` makes `answer_logprob` of them and drops them: they would fill traces and the call store."""
    answer_tokens: int | None = None
    """Tokens of the extracted answer, which is a part of the text. None: `Pair.call` counts them, if the model has a
    tokenizer."""
    answer_logprob: float | None = None
    """The sum of the log-probabilities of the tokens of the extracted answer, without the brackets. So its exponential
    is the probability that the model gave to its answer. None: not asked for, not known, or there is no answer."""


LoggedPrompt = tuple[Mapping[str, Any], ...]
"""The messages of a prompt, each in the form {"role": ..., "content": [...]}. Each part of the content is a text; an
image is `<image WIDTHxHEIGHT>`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Reply):
    """One finished request: the engine's reply, and what the cascade knows about it. All token counts of a run are sums
    over its calls."""

    key: CallKey
    dropped_tokens: int = 0
    """Thinking tokens that were left out so that the prompt fits the context."""
    parsed: str | None = None
    """The answer as the scorer of the benchmark reads it. None: it cannot read it."""
    started_at: Seconds | None = None
    """When the request was made, in seconds since 1970 (Unix time), so that `started_at + total_s` is its end. Retries
    do not count. None: not known, or the call is shared."""
    shared: bool = False
    """Whether another run made this call, and this run only found it in a store. The tokens are those of
    that call. The call has no times: `total_s` is 0, and the other times are None."""
    messages: LoggedPrompt | None = None
    """The prompt, with `log_prompts=true`."""

    @classmethod
    def of(cls, reply: Reply, **known: Any) -> "Call":
        """Return the call of a reply. `known`: the other fields, and those that take the place of the reply's."""
        return cls(**{field.name: getattr(reply, field.name) for field in fields(Reply)} | known)


CALL = TypeAdapter(Call)
"""Writes and reads the fields of a call as JSON values: for the call store, traces and scripts."""


class Model(ABC):
    """What a sample needs of an engine, or of one that is started again after a crash (`engines/restart.py`)."""

    @abstractmethod
    async def generate(self, prompt: Prompt, sampling: Sampling) -> Reply:
        """Return the model's answer. Raises a `SampleError` or `EngineCrashed`."""

    @abstractmethod
    async def truncate_thinking(self, prompt: Prompt, thinking: str, sampling: Sampling) -> tuple[str, int]:
        """Return the longest final part of `thinking` that fits the context with `prompt`, and the number of dropped
        tokens.

        `thinking` must be part of the last message. Space for an answer is kept free (`end_of_thinking` of
        `engines/messages.py`). Raises `PromptTooLong` if the
        prompt does not fit even without thinking, or if the engine cannot truncate.
        """

    @abstractmethod
    def count_tokens(self, text: str) -> int | None:
        """Return the number of the model's tokens in a text. None: the engine has no tokenizer, or was never
        started."""


class Engine(Model):
    """One running model. The constructor of an engine refuses a configuration that cannot work, before anything starts:
    it raises `ArgumentError`, `EngineUnavailable` or `EngineStartError`.

    `generate` may be called any number of times at once; answers may come in any order. Cancelling a call frees its
    slot. A prompt that does not fit, or an image that cannot be prepared, raises a `SampleError` for that call only. A
    crashed engine raises `EngineCrashed` for every call in flight.
    """

    side: Side
    description: str
    """Where the engine runs and with which settings, for people."""
    shares_gpu: bool = False
    """Whether both models are on one GPU, so that they start one after the other."""
    tokenizer: Any = None
    """Hugging Face's tokenizer of the model, of the last start. None: the engine has none, or was never started."""

    @property
    def is_alive(self) -> bool:
        """False if it is known that the processes of the engine have ended, or that no server of it answers."""
        return True

    @abstractmethod
    def identity(self) -> str:
        """Return everything about the engine that can change an answer: version, model, checkpoint, arguments. The text
        may hold secrets: it is hashed, and never stored or shown. An endpoint must have started."""

    def version(self) -> str:
        """Return what can change a probability, besides the checkpoint: the engine, its version, its model runner and
        its precision. Empty: not known. The engine must have started."""
        return ""

    def count_tokens(self, text: str) -> int | None:
        return None if self.tokenizer is None else len(self.tokenizer.encode(text, add_special_tokens=False))

    @abstractmethod
    async def start(self) -> None:
        """Start the engine. Raises `EngineStartError`; the caller must then call `close`."""

    @abstractmethod
    async def close(self) -> None:
        """Stop the engine, also during its start, and leave no process behind. May be called more than once; `start`
        starts the engine again."""

    async def clear_caches(self) -> None:
        """Forget the prompts and images of earlier calls, so that the next call costs as much as a first one."""
        return

    def last_error(self) -> str:
        """Return a sentence about the error that ended a process of the engine, or about where to look. Empty: the
        engine has no process of its own."""
        return ""
