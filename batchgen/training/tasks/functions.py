"""The code task: a small Python function written from its description, which determines every character of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from batchgen.training.tasks.sample import Sample, between, pick
from batchgen.training.tasks.words import words

NOUNS = words(
    "price amount weight height length score speed volume width depth total level value count rate size "
    "distance budget pressure signal"
)
PLURALS = words("prices amounts weights scores values counts rates sizes numbers levels items totals points grades")
TEXTS = words("name title label word line text key code path note")
VERBS = words("get make find compute build fetch derive update pick read")


@dataclass(frozen=True, slots=True)
class Function:
    """What the description says it does, its signature, and its body lines (indented by four at the least)."""

    does: str
    name: str
    parameters: str
    body: tuple[str, ...]

    def source(self) -> str:
        """The function as it is to be written."""
        lines = [f"def {self.name}({self.parameters}):", *(f"    {line}" for line in self.body)]
        return "\n".join(lines)


def _name(rng: Random, noun: str) -> str:
    return f"{pick(rng, VERBS)}_{noun}"


def scaled(rng: Random) -> Function:
    """One operator on one number."""
    noun, number = pick(rng, NOUNS), between(rng, 2, 99)
    word, sign = pick(rng, (("plus", "+"), ("minus", "-"), ("times", "*"), ("divided by", "/"), ("modulo", "%")))
    return Function(f"returns {noun} {word} {number}", _name(rng, noun), noun, (f"return {noun} {sign} {number}",))


def bounded(rng: Random) -> Function:
    """A number kept on one side of a bound."""
    noun, number = pick(rng, NOUNS), between(rng, 2, 99)
    word, function = pick(rng, (("at most", "min"), ("at least", "max")))
    return Function(
        f"returns {noun}, but {word} {number}", _name(rng, noun), noun, (f"return {function}({noun}, {number})",)
    )


def clamped(rng: Random) -> Function:
    """A number kept between two bounds."""
    noun, low = pick(rng, NOUNS), between(rng, 1, 40)
    high = low + between(rng, 5, 50)
    body = (f"if {noun} < {low}:", f"    return {low}", f"if {noun} > {high}:", f"    return {high}", f"return {noun}")
    return Function(f"keeps {noun} between {low} and {high}", _name(rng, noun), noun, body)


def classified(rng: Random) -> Function:
    """One of two words, by a bound."""
    noun, number = pick(rng, NOUNS), between(rng, 2, 99)
    first, second = rng.sample(("high", "low", "good", "bad", "big", "small", "hot", "cold"), 2)
    word, sign = pick(rng, (("above", ">"), ("below", "<")))
    body = (f"if {noun} {sign} {number}:", f'    return "{first}"', f'return "{second}"')
    return Function(f"returns {first} if {noun} is {word} {number}, else {second}", _name(rng, noun), noun, body)


def filtered(rng: Random) -> Function:
    """Those of a list on one side of a bound."""
    nouns, number = pick(rng, PLURALS), between(rng, 2, 99)
    word, sign = pick(rng, (("above", ">"), ("below", "<"), ("equal to", "=="), ("other than", "!=")))
    item = nouns[:-1]
    body = (f"return [{item} for {item} in {nouns} if {item} {sign} {number}]",)
    return Function(f"returns the {nouns} {word} {number}", _name(rng, nouns), nouns, body)


def counted(rng: Random) -> Function:
    """How many of a list are on one side of a bound, in a loop."""
    nouns, number = pick(rng, PLURALS), between(rng, 2, 99)
    word, sign = pick(rng, (("above", ">"), ("below", "<"), ("equal to", "==")))
    item = nouns[:-1]
    body = (
        "found = 0",
        f"for {item} in {nouns}:",
        f"    if {item} {sign} {number}:",
        "        found += 1",
        "return found",
    )
    return Function(f"counts the {nouns} {word} {number}", _name(rng, nouns), nouns, body)


def totalled(rng: Random) -> Function:
    """The sum of a list with one operator on each of it, in a loop."""
    nouns, number = pick(rng, PLURALS), between(rng, 2, 99)
    word, sign = pick(rng, (("times", "*"), ("plus", "+"), ("minus", "-")))
    item = nouns[:-1]
    body = ("total = 0", f"for {item} in {nouns}:", f"    total += {item} {sign} {number}", "return total")
    return Function(f"adds up all {nouns}, each {word} {number}", _name(rng, nouns), nouns, body)


def labelled(rng: Random) -> Function:
    """A text with a method on it and another text in front."""
    noun = pick(rng, TEXTS)
    word, method = pick(rng, (("upper", "upper"), ("lower", "lower"), ("title", "title")))
    prefix = pick(rng, ("new", "old", "my", "top", "raw", "id"))
    body = (f'return "{prefix}-" + {noun}.{method}()',)
    return Function(f"puts {prefix} and a dash before the {noun} in {word} case", _name(rng, noun), noun, body)


def tested(rng: Random) -> Function:
    """Whether a text begins or ends in a certain way."""
    noun, (word, method) = pick(rng, TEXTS), pick(rng, (("starts", "startswith"), ("ends", "endswith")))
    part = pick(rng, ("a", "b", "x", "z", "re", "un", "pre", "ing", "est"))
    return Function(
        f"tells whether the {noun} {word} with {part}", f"check_{noun}", noun, (f'return {noun}.{method}("{part}")',)
    )


def combined(rng: Random) -> Function:
    """Two numbers by one operator, then a number by another."""
    first, second = rng.sample(NOUNS, 2)
    number = between(rng, 2, 99)
    word, sign = pick(rng, (("plus", "+"), ("minus", "-"), ("times", "*")))
    other, other_sign = pick(rng, (("plus", "+"), ("minus", "-")))
    body = (f"result = {first} {sign} {second}", f"return result {other_sign} {number}")
    return Function(f"returns {first} {word} {second}, {other} {number}", _name(rng, first), f"{first}, {second}", body)


FUNCTIONS: Sequence[Callable[[Random], Function]] = (
    scaled,
    bounded,
    clamped,
    classified,
    filtered,
    counted,
    totalled,
    labelled,
    tested,
    combined,
)


def generate(rng: Random) -> Sample:
    """A description and the function for it."""
    function = pick(rng, FUNCTIONS)(rng)
    text = f"Write a Python function {function.name}({function.parameters}) that {function.does}."
    source = function.source()
    return Sample("code", text, text, source, key=source)
