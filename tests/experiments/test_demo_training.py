"""The training of the demo pair: questions have one exact answer, mistakes are mistakes, and a training continues."""

import json
import random
from pathlib import Path

import pytest
import torch

from experiments.demo_pair import checkpoint, samples, shapes
from experiments.demo_pair.batches import Batches
from experiments.demo_pair.questions import ask
from experiments.demo_pair.thinking import mistaken, solve
from experiments.demo_pair.train import Recipe, Training
from lmms_eval_mai.harness import tasks
from lmms_eval_mai.paper import prompts
from lmms_eval_mai.paper.agreement import extract_answer
from lmms_eval_mai.paper.benchmarks import BENCHMARKS


@pytest.fixture(scope="module")
def drawn() -> list[tuple[shapes.Cells, shapes.Question]]:
    rng = random.Random(11)
    return [(cells, ask(rng, cells)) for cells in (shapes.random_cells(rng) for _ in range(600))]


@pytest.fixture(scope="module")
def batches() -> Batches:
    return Batches(checkpoint.make_tokenizer(seed=0), "large")


def by_hand(cells: shapes.Cells, question: shapes.Question) -> str:
    """Return the free answer, derived from the words of the question."""
    grid = [cells[i : i + shapes.SIDE] for i in range(0, len(cells), shapes.SIDE)]
    words = question.text.rstrip("?.").split()

    def number(*wanted: str) -> int:
        parts = [set(part.split()) - {"a", "shape"} for part in " ".join(wanted).split(" or ")]
        return sum(any(part <= set(cell.split()) for part in parts) for cell in cells)

    if question.category == "yes_no":
        return "yes" if number(*words[-2:]) else "no"
    if question.category == "count":
        return str(number(*words[words.index("hold") + 1 :]))
    if question.category == "compare":
        than = words.index("than")
        return "yes" if number(*words[words.index("hold") + 1 : than]) > number(*words[than + 1 :]) else "no"
    if question.category == "where":
        return grid[int(words[4].rstrip(",")) - 1][int(words[6]) - 1]
    rule = question.text.split(", and over an edge")[0].lower().split(", ")
    leads = {one.split()[0]: one.split()[2] for one in rule}
    after = question.text.split("Start in row ")[1].replace(",", "").split()
    place = shapes.SIDE * (int(after[0]) - 1) + int(after[2]) - 1
    for _ in range(["one", "two", "three", "four", "five", "six"].index(after[5]) + 1):
        move = leads[cells[place].split()[0]]
        row, column = divmod(place, shapes.SIDE)
        row += {"up": -1, "down": 1}.get(move, 0)
        column += {"left": -1, "right": 1}.get(move, 0)
        place = row % shapes.SIDE * shapes.SIDE + column % shapes.SIDE
    return cells[place]


def test_the_answer_follows_from_the_words_of_the_question(
    drawn: list[tuple[shapes.Cells, shapes.Question]],
) -> None:
    for cells, question in drawn:
        answer = solve(question, cells).answer
        if question.options:
            answer = question.options["ABCD".index(answer)]
        assert answer == by_hand(cells, question), (cells, question)


def test_one_word_distinguishes_the_options(drawn: list[tuple[shapes.Cells, shapes.Question]]) -> None:
    options = [question.options for _, question in drawn if question.options]
    assert len(options) > 80
    for four in options:
        words = [word for option in four for word in option.split()]
        assert len(four) == 4 and len(set(words)) == len(words), four


def test_thinking_explanation_and_short_answer_end_with_the_same_answer(
    drawn: list[tuple[shapes.Cells, shapes.Question]],
) -> None:
    for cells, question in drawn:
        solution = solve(question, cells)
        assert {extract_answer(text) for text in (solution.thinking, solution.explanation)} == {solution.answer}


def test_a_mistaken_solution_has_another_answer_that_parses(
    drawn: list[tuple[shapes.Cells, shapes.Question]],
) -> None:
    rng, found = random.Random(3), 0
    for cells, question in drawn:
        wrong = mistaken(question, cells, rng)
        if wrong is None:
            continue
        found += 1
        doc = dict(zip("ABCD", question.options or [""] * 4, strict=True))
        assert extract_answer(wrong.thinking) == wrong.answer != solve(question, cells).answer
        assert BENCHMARKS["shapes"].parse(wrong.answer, doc) is not None
    assert found > 400


def test_a_training_prompt_equals_the_text_of_the_task() -> None:
    rng, seen = random.Random(4), set()
    for _ in range(600):
        sample = samples.draw_sample(rng, shapes.random_cells(rng), "large")
        options = dict(zip("ABCD", sample.question.options or [""] * 4, strict=True))
        doc = {"question": sample.question.text, **options}
        if sample.form in ("S", "E", "R"):
            text = tasks.doc_to_text(doc, {"benchmark": "shapes", "variant": sample.form.lower()})
        else:
            kind = BENCHMARKS["shapes"].kind(doc)
            benchmark = {"stage2": "pope", "reference": "shapes"}[sample.form]
            given = prompts.transfer(benchmark, "@", kind).split("@")
            question = tasks.doc_to_text(doc, {"benchmark": "shapes", "variant": "s"})
            question = question.removesuffix(prompts.instruction("S", kind))
            assert sample.prompt.startswith(question + given[0]) and sample.prompt.endswith(given[1])
            text = sample.prompt
        assert text == sample.prompt
        seen.add((sample.form, bool(sample.question.options)))
    assert len(seen) == 10


def test_a_training_prompt_equals_the_tasks_message_in_the_chat_template(batches: Batches) -> None:
    processor = checkpoint.make_processor(batches.tokenizer, checkpoint.SIZES["large"])
    rng = random.Random(5)
    for _ in range(20):
        cells = shapes.random_cells(rng)
        sample = samples.draw_sample(rng, cells, "large")
        content = [{"type": "image", "image": shapes.draw(cells, rng)}, {"type": "text", "text": sample.prompt}]
        expected = processor.apply_chat_template(
            [{"role": "user", "content": content}],
            tokenize=True,
            add_generation_prompt=True,
            return_dict=True,
            return_tensors="pt",
        )
        group = batches.group([0], [sample])
        learned = group.labels[0] != -100
        last = int(learned.nonzero()[0])
        assert group.tokens[0, : last + 1].tolist() == expected["input_ids"][0].tolist()
        response = group.labels[0][learned].tolist()
        ends = [option.split()[-1] for option in sample.question.options]
        assert [batches.tokenizer.decode(group.tokens[0, i]).strip() for i in group.options[0] if i >= 0] == ends
        short = sample.form not in ("E", "R")
        assert int(group.question_end) == last + short
        weights = {
            batches.tokenizer.decode(token): float(weight)
            for token, weight in zip(response, group.weights[0][learned], strict=True)
        }
        assert weights["<|im_end|>"] == (4.0 if short else 1.0)
        assert not sample.question.options or weights[solve(sample.question, cells).answer] == (4.0 if short else 8.0)
        assert set(group.weights[0][~learned].tolist()) == {0.0}
        assert batches.tokenizer.decode(response) == sample.response + "<|im_end|>"


def test_a_transferred_thought_is_in_the_prompt_without_its_answer_and_the_response_is_right() -> None:
    thought = samples.Thought("thinking 3", ("first thought\n[[no]]", "second thought\n[[ring]]"))
    cells, image, _ = samples.transfer_samples(random.Random(0), thought)
    assert image.tobytes() == samples.draw_thought("thinking 3", 2)[1].tobytes()
    both = [one for seed in range(10) for one in samples.transfer_samples(random.Random(seed), thought)[2]]
    for text, sample in zip(thought.thinking * 10, both, strict=True):
        before, answer = text.split("\n")
        assert before in sample.prompt and (answer in sample.prompt) is (sample.form == "stage2")
        assert sample.response == f"[[{solve(sample.question, cells).answer}]]"
    assert {sample.form for sample in both} == {"reference", "stage2"}


def test_the_tokenizer_has_a_token_for_every_word_and_encodes_any_text(batches: Batches) -> None:
    assert batches.tokenizer.tokenize("How many red circle") == ["How", "Ġmany", "Ġred", "Ġcircle"]
    text = "¿naïve 漢字 🙂?"
    assert batches.tokenizer.decode(batches.tokenizer(text).input_ids) == text


def test_an_image_shows_its_cells(drawn: list[tuple[shapes.Cells, shapes.Question]]) -> None:
    rng = random.Random(9)
    for cells, _ in drawn[:100]:
        image = shapes.draw(cells, rng)
        for number, cell in enumerate(cells):
            row, column = divmod(number, shapes.SIDE)
            left, top = column * shapes.CELL + 1, row * shapes.CELL + 1
            inside = image.crop((left, top, left + shapes.CELL - 2, top + shapes.CELL - 2))
            clutter = {shapes.BACKGROUND, *shapes.COLOURS.values()}
            painted = [(n, colour) for n, colour in inside.getcolors(1000) if colour not in clutter]
            assert bool(painted) is (cell != shapes.EMPTY)
            for _, colour in painted:
                wanted = shapes.COLOURS[cell.split()[0]]
                assert max(abs(a - b) for a, b in zip(colour, wanted, strict=True)) <= shapes.SHADE, (cell, colour)


@pytest.mark.long
def test_an_interrupted_training_gives_the_same_checkpoint(tmp_path: Path) -> None:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    recipe = Recipe(steps=2, seed=2, images=3, samples=4, warmup=1)
    Training(tmp_path / "whole", "small", recipe).run(log_every=2)
    interrupted = Training(tmp_path / "parts", "small", recipe)
    interrupted.step()
    interrupted.save_state()
    Training(tmp_path / "parts", "small", recipe).run(log_every=2)
    lines = [json.loads(line) for line in (tmp_path / "parts" / "small.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2]
    assert all(line[part] > 0 for line in lines for part in ("loss", "cell_loss", "place_loss", "option_loss"))
    models = [AutoModelForImageTextToText.from_pretrained(tmp_path / one / "small") for one in ("whole", "parts")]
    assert models[0].dtype == torch.bfloat16
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a, b)
    assert AutoProcessor.from_pretrained(tmp_path / "parts" / "small").tokenizer.model_max_length == checkpoint.CONTEXT
