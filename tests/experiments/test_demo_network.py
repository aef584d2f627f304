"""The demo pair's fast forward pass and its greedy decoding equal those of transformers."""

import random

import pytest
import torch

from experiments.demo_pair import checkpoint, network, samples
from experiments.demo_pair.batches import Batches
from experiments.demo_pair.decoding import respond


def random_network(name: str) -> tuple[network.Network, Batches]:
    """Return a model with larger random weights, so that its output depends on all of its input."""
    batches = Batches(checkpoint.make_tokenizer(seed=0), name)
    torch.manual_seed(0)
    model = checkpoint.make_model(checkpoint.SIZES[name], batches.tokenizer).eval()
    for weight in model.parameters():
        if weight.dim() >= 2:
            torch.nn.init.normal_(weight, std=0.1)
    return network.Network(model, batches.positions(model), (2,)), batches


@pytest.mark.parametrize("name", ["small", "large"])
def test_the_batched_forward_pass_equals_that_of_transformers(name: str) -> None:
    fast, batches = random_network(name)
    model, size = fast.model, checkpoint.SIZES[name]
    processor = checkpoint.make_processor(batches.tokenizer, size)
    rng = random.Random(7)
    drawn = samples.draw_images(rng, 3)
    batch = [samples.draw_sample(rng, cells, "large") for cells, _ in drawn]
    group = batches.group([0, 1, 2], batch)
    with torch.no_grad():
        vision_tokens, deepstack_tokens = fast.encode(network.patches_of([image for _, image in drawn], size.patch))
        states, (middle,), attention_logits = fast(
            group.tokens, vision_tokens, deepstack_tokens, group.letter_positions
        )
        for row, (_, image) in enumerate(drawn):
            prompt = batches.opening.replace("<|image_pad|>" * network.IMAGE_TOKENS, "<|image_pad|>")
            prompt += batch[row].prompt + batches.closing
            inputs = processor(images=[image], text=[prompt], return_tensors="pt")
            theirs = model(**inputs, output_hidden_states=True, output_attentions=True)
            length = theirs.logits.shape[1]
            torch.testing.assert_close(model.lm_head(states[row, :length]), theirs.logits[0], atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(middle[row, :length], theirs.hidden_states[2][0], atol=1e-4, rtol=1e-4)
            at = min(int(group.letter_positions[row]), length - 1)
            if at == group.letter_positions[row]:
                attention = theirs.attentions[-1][0, 0, at]
                torch.testing.assert_close(attention_logits[row].softmax(-1)[:length], attention, atol=1e-4, rtol=1e-4)


def test_greedy_decoding_equals_that_of_transformers() -> None:
    fast, batches = random_network("small")
    processor = checkpoint.make_processor(batches.tokenizer, checkpoint.SIZES["small"])
    rng = random.Random(8)
    drawn = [(image, samples.draw_sample(rng, cells, "large").prompt) for cells, image in samples.draw_images(rng, 4)]
    drawn.append((drawn[0][0], drawn[1][1]))  # two prompts of the same length, which are decoded together
    found = respond(fast, batches, *zip(*drawn, strict=True), limit=20)
    assert len(set(found)) > 1
    for (image, text), ours in zip(drawn, found, strict=True):
        prompt = batches.opening.replace("<|image_pad|>" * network.IMAGE_TOKENS, "<|image_pad|>")
        inputs = processor(images=[image], text=[prompt + text + batches.closing], return_tensors="pt")
        theirs = fast.model.generate(**inputs, max_new_tokens=20)[0, inputs["input_ids"].shape[1] :]
        assert batches.tokenizer.decode([token for token in theirs if token != batches.tokenizer.eos_token_id]) == ours
