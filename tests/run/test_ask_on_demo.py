"""The Python API on vLLM: the script of the README, and a notebook whose results equal those of an lmms-eval run."""

import json
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
from support.processes import end, start_script

from lmms_eval_mai.plugin import task_dir

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 100


NOTEBOOK = [
    """
    import asyncio, json
    from lmms_eval_mai import Cascade

    mai = Cascade(pair="demo", dtype="float32")
    mai.start()
    """,
    """
    questions = json.load(open("questions.json"))
    traces = await asyncio.gather(
        *(mai.ask(f"{number}.png", *question) for number, question in enumerate(questions))
    )
    """,
    """
    again = await mai.ask("0.png", *questions[0])
    mai.close()
    json.dump([[trace.exit, trace.text, trace.answer.text] for trace in [*traces, again]], open("found.json", "w"))
    """,
]


@pytest.mark.long
def test_hundred_questions_at_once_in_a_notebook_have_the_exits_answers_and_score_of_an_lmms_eval_run(
    demo_run: Any, tmp_path: Path
) -> None:
    import datasets

    file = str(task_dir() / "shapes" / "test.parquet")
    documents = list(datasets.load_dataset("parquet", data_files=file, split="train").select(range(QUESTIONS)))
    for number, doc in enumerate(documents):
        doc["image"].save(tmp_path / f"{number}.png")
    questions = [(doc["question"], [doc[letter] for letter in "ABCD" if doc[letter]] or None) for doc in documents]
    (tmp_path / "questions.json").write_text(json.dumps(questions))
    cells = [nbformat.v4.new_code_cell("\n".join(line[4:] for line in cell.split("\n"))) for cell in NOTEBOOK]
    notebook = nbformat.v4.new_notebook(cells=cells)
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()

    *found, again = json.loads((tmp_path / "found.json").read_text())
    assert again == found[0]
    samples = demo_run[1][:QUESTIONS]
    assert [sample["doc_id"] for sample in samples] == list(range(QUESTIONS))
    assert [exit for exit, _, _ in found] == [sample["token_counts"][0]["exit"] for sample in samples]
    assert [text for _, _, text in found] == [sample["resps"][0][0] for sample in samples]
    assert [[text] for _, text, _ in found] == [sample["filtered_resps"] for sample in samples]
    right = sum(text.lower() == doc["answer"].lower() for (_, text, _), doc in zip(found, documents, strict=True))
    assert right == sum(sample["exact_match"] for sample in samples)


@pytest.mark.long
def test_script_of_the_readme_prints_an_answer_and_its_exit(tmp_path: Path) -> None:
    (script,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE)
    assert len(script.strip().splitlines()) <= 7
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    process = start_script(tmp_path / "script.py", tmp_path / "log")
    end(process)
    text = (tmp_path / "log").read_text()
    assert process.exitcode == 0, text
    assert re.search(r"^[0-9] (agree_short|agree_think|transfer)$", text, re.MULTILINE), text
