"""Reads and checks arguments with pydantic, and turns its errors into sentences. All engines and the run share this."""

import ast
import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from lmms_eval_mai.errors import ArgumentError
from lmms_eval_mai.redaction import redacted

M = TypeVar("M", bound="Arguments")


def _number(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):  # pydantic reads True and "1" as 1
        raise ValueError("expected a number")
    return value


Count = Annotated[int, Field(ge=1), BeforeValidator(_number)]  # lmms-eval may have read it as a float
Whole = Annotated[int, Field(ge=0), BeforeValidator(_number)]
Number = Annotated[float, Field(ge=0), BeforeValidator(_number)]
Share = Annotated[float, Field(gt=0, le=1), BeforeValidator(_number)]

EXPECTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "bool": "true or false",
    "string": "a text",
    "mapping": "a mapping",
    "dict": "a mapping",
    "tuple": "a list",
}
"""The beginning of the type of a pydantic error -> what is expected."""
NO_EFFECT = object()
"""Marks an argument that changes no answer. A run may be resumed with another value of it."""


class Arguments(BaseModel):
    """Arguments that are checked when they are read, and do not change. The docstring of a field is its
    documentation."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )

    @classmethod
    def without_effect(cls) -> frozenset[str]:
        """Return the names of the arguments that are marked with `NO_EFFECT`."""
        return frozenset(name for name, field in cls.model_fields.items() if NO_EFFECT in field.metadata)


def read(model: type[M], given: Mapping[str, Any], prefix: str = "") -> M:
    """Check arguments. `prefix`: of their names in messages, such as `small_`. Raises `ArgumentError`."""
    try:
        return model(**given)
    except ValidationError as error:
        raise ArgumentError(sentence(error, given, prefix)) from None


def sentence(error: ValidationError, given: Mapping[str, Any], prefix: str = "") -> str:
    """Return the first problem of a ValidationError as a sentence: the argument, its value, and what is expected."""
    problem = error.errors()[0]
    if not problem["loc"]:  # a check of several arguments, which is a sentence already
        return problem["msg"].removeprefix("Value error, ")
    name = str(problem["loc"][0])
    value = redacted({name: given.get(name)})[name]
    expected = EXPECTED.get(problem["type"].partition("_")[0])
    text = f"expected {expected}" if expected else problem["msg"].removeprefix("Value error, ").rstrip(".")
    if problem["type"] == "literal_error":
        options = str(problem["ctx"]["expected"]).replace(" or ", ", ").replace("'", "")
        return f"{prefix}{name}={value} is unknown: choose one of {options}."
    if text.startswith(f"{name}="):
        return f"{text}."
    return f"{prefix}{name}={value} is invalid: {text.replace('Input should be', 'expected a value that is')}."


def parse_literal(value: Any) -> Any:
    """Convert an argument that lmms-eval leaves as text: JSON or Python text of a dict or list, quoted text, or none.
    Raises `ValueError`."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    if text.lower() in ("none", "null"):
        return None
    if text[:1] in ("{", "["):
        for read_text in (json.loads, ast.literal_eval):
            try:
                return read_text(text)
            except (ValueError, SyntaxError):
                continue
        # The message leaves out the value, which may hold a key.
        raise ValueError('expected JSON or a Python literal, with quoted names, such as {"image": 8}')
    return value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question with up to three similar names, for the end of a message. Empty if no name is similar."""
    near = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
    return f" Did you mean {' or '.join(near)}?" if near else ""
