"""Opens a question as a sample."""

from lmms_eval_mai.contract import ContentPart, Message
from lmms_eval_mai.engines.messages import merge_adjacent_text
from lmms_eval_mai.paper.sample import Sample
from lmms_eval_mai.serve.images import EncodedImage, RemoteImage, decode_images
from lmms_eval_mai.serve.question import Question
from lmms_eval_mai.serve.turns import images_of

TASK = "chat"
"""Name of the task in messages, traces and scripts."""


def open_question(question: Question, number: int, max_pixels: int) -> Sample:
    """Decode the images of a question and return its sample. This blocks, so run it in a thread. `number`: the number
    of the request in messages. Raises `UnreadableImage`."""
    encoded = list(images_of(question.turns))
    images = {one.number: image for one, image in zip(encoded, decode_images(encoded, max_pixels), strict=True)}

    def part_of(part: str | EncodedImage | RemoteImage) -> ContentPart:
        return part if isinstance(part, str) else images[part.number]

    messages = tuple(
        Message(turn.role, tuple(merge_adjacent_text(part_of(part) for part in turn.content if part)))
        for turn in question.turns
    )
    # The first call imports lmms-eval's parser, which takes seconds. Do not do this on the event loop.
    question.benchmark.parse("", question.doc)
    return Sample(
        task=TASK,
        doc_id=number,
        repeat=0,
        question=messages,
        doc=question.doc,
        benchmark=question.benchmark,
        kind=question.kind,
        variant=question.variant,
        two_stage=False,
        sampling=question.sampling,
        own_prompt=messages if question.variant is None else (),
    )
