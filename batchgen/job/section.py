"""What all sections of a job file have in common: strict values, and errors in the job's own words."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

# Completion tokens and the seed are stored as int32 and int64 columns.
MAX_INT32 = 2**31 - 1
MAX_INT64 = 2**63 - 1


def problem(text: str) -> PydanticCustomError:
    """An error whose text is shown as it is: what must be, after `found ...`."""
    return PydanticCustomError("job", "{text}", {"text": text})


def not_blank(value: str) -> str:
    """The text, if it has more than white space in it."""
    if not value.strip():
        raise problem("must not be empty")
    if "\0" in value:
        raise problem("must not hold a NUL character")
    return value


def no_repeats(values: list[str]) -> list[str]:
    """The texts, if they are all different."""
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise problem(f"names {value} twice")
        seen.add(value)
    return values


Text = Annotated[str, AfterValidator(not_blank)]


class Section(BaseModel):
    """Common to all sections: unknown keys are refused, types are never converted, values never change."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )
