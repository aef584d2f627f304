"""The messages of a request as turns: texts and images that are not decoded yet, within the limits of the server."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lmms_eval_mai.engines.messages import replace_lone_surrogates
from lmms_eval_mai.serve.errors import RequestError, bad_request
from lmms_eval_mai.serve.images import EncodedImage, RemoteImage, image_at
from lmms_eval_mai.serve.schema import ChatRequest, ImagePart, Message
from lmms_eval_mai.serve.settings import Settings


@dataclass(frozen=True)
class Turn:
    """One message of the chat."""

    role: str
    content: tuple[str | EncodedImage | RemoteImage, ...]

    def text(self) -> str:
        """Return all texts of the turn."""
        return "\n".join(part for part in self.content if isinstance(part, str))


def turns_of(request: ChatRequest, settings: Settings) -> tuple[Turn, ...]:
    """Return the turns of a request. The last one is a question of the user. Raises `RequestError`."""
    _check_roles([message.role for message in request.messages])
    images: list[EncodedImage | RemoteImage] = []
    with_downloads = bool(settings.allowed_media_domains)
    turns = tuple(_turn(message, images, with_downloads) for message in request.messages)
    if len(images) > settings.max_images:
        raise _too_large(f"{len(images)} images, and this server takes at most {settings.max_images}")
    characters = sum(len(turn.text()) for turn in turns)
    if characters > settings.max_characters:
        raise _too_large(f"{characters:,} characters, and this server takes at most {settings.max_characters:,}")
    if not turns[-1].text().strip():
        raise bad_request("The last message has no text, so there is no question.", "empty_question", "messages")
    return turns


def images_of(turns: Sequence[Turn]) -> Iterator[EncodedImage]:
    """Yield the images of a chat in reading order, except those that are not downloaded yet."""
    for turn in turns:
        yield from (part for part in turn.content if isinstance(part, EncodedImage))


def remote_images_of(turns: Sequence[Turn]) -> Iterator[RemoteImage]:
    """Yield the images of a chat that are not downloaded yet, in reading order."""
    for turn in turns:
        yield from (part for part in turn.content if isinstance(part, RemoteImage))


def _check_roles(roles: Sequence[str]) -> None:
    """Refuse an order of roles that chat templates refuse or that asks nothing."""
    if roles[-1] != "user":
        raise bad_request(
            f"The last message has the role {roles[-1]}. It must have the role user, because it is the question.",
            "invalid_value",
            "messages",
        )
    if any(role in ("system", "developer") for role in roles[1:]):
        raise bad_request("Only the first message may have the role system.", "invalid_value", "messages")


def _turn(message: Message, images: list[EncodedImage | RemoteImage], with_downloads: bool) -> Turn:
    """Return a message as a turn, and append its images to `images`."""
    role = "system" if message.role == "developer" else message.role
    if isinstance(message.content, str):
        return Turn(role, (replace_lone_surrogates(message.content),))
    parts: list[str | EncodedImage | RemoteImage] = []
    for part in message.content:
        if isinstance(part, ImagePart):
            images.append(image_at(part.image_url.url, len(images) + 1, with_downloads))
            parts.append(images[-1])
        else:
            parts.append(replace_lone_surrogates(part.text))
    return Turn(role, tuple(parts))


def _too_large(what: str) -> RequestError:
    return RequestError(413, f"The request has {what}. Send less.", "request_too_large", "messages")
