"""The math task: questions about whole numbers, answered in steps that are each small enough to do at once.

The answer's form is fixed per kind of question, so the whole response is a function of the question.
"""

from collections.abc import Callable, Sequence
from random import Random

from batchgen.training.tasks.sample import Sample, between, pick
from batchgen.training.tasks.words import FIRST_NAMES

Question = tuple[str, list[str], str]


def add(left: int, right: int) -> str:
    """One step, as `3 + 4 = 7`."""
    return f"{left} + {right} = {left + right}"


def subtract(left: int, right: int) -> str:
    """One step, as `7 - 3 = 4`."""
    return f"{left} - {right} = {left - right}"


def multiply(left: int, right: int) -> list[str]:
    """Steps for a number below 100 times a digit: tens and ones apart where it has both."""
    tens, ones = left // 10 * 10, left % 10
    if tens == 0 or ones == 0:
        return [f"{left} * {right} = {left * right}"]
    parts = [f"{tens} * {right} = {tens * right}", f"{ones} * {right} = {ones * right}"]
    return [*parts, add(tens * right, ones * right)]


def chain(rng: Random) -> Question:
    """Sums and differences from left to right, never below zero."""
    total = between(rng, 20, 400)
    terms, steps = [str(total)], list[str]()
    for _ in range(between(rng, 2, 4)):
        number = between(rng, 2, 99)
        minus = rng.random() < 0.5 and number <= total
        steps.append(subtract(total, number) if minus else add(total, number))
        terms.append(f"{'-' if minus else '+'} {number}")
        total += -number if minus else number
    return f"Compute {' '.join(terms)}.", steps, str(total)


def product(rng: Random) -> Question:
    """A two-digit number times a digit."""
    left, right = between(rng, 11, 99), between(rng, 2, 9)
    return f"Compute {left} * {right}.", multiply(left, right), str(left * right)


def mixed(rng: Random) -> Question:
    """A sum or difference with a product in it, which is worked out first."""
    first, left, right = between(rng, 10, 300), between(rng, 11, 99), between(rng, 2, 9)
    value, steps = left * right, multiply(left, right)
    if rng.random() < 0.5:
        return f"Compute {first} + {left} * {right}.", [*steps, add(first, value)], str(first + value)
    first += value
    return f"Compute {first} - {left} * {right}.", [*steps, subtract(first, value)], str(first - value)


def columns(rng: Random) -> Question:
    """Written addition, from the last digit to the first, with carries."""
    left, right = between(rng, 100, 9999), between(rng, 100, 9999)
    steps, carry = list[str](), 0
    for place in range(max(len(str(left)), len(str(right)))):
        upper, lower = left // 10**place % 10, right // 10**place % 10
        digit_sum = upper + lower + carry
        steps.append(f"{upper} + {lower} + {carry} = {digit_sum}, write {digit_sum % 10}, carry {digit_sum // 10}")
        carry = digit_sum // 10
    return f"Add {left} and {right} in columns.", steps, str(left + right)


def shopping(rng: Random) -> Question:
    """Two kinds of goods bought, paid from a sum of money."""
    name, money = pick(rng, FIRST_NAMES), between(rng, 30, 99) * 10
    first, second = rng.sample(("pens", "books", "cups", "bags", "maps", "plants"), 2)
    count, price, other_count, other_price = (between(rng, 2, 9) for _ in range(4))
    price, other_price = price + between(rng, 0, 2) * 10, other_price + between(rng, 0, 2) * 10
    cost, other_cost = count * price, other_count * other_price
    steps = [*multiply(price, count), *multiply(other_price, other_count), add(cost, other_cost)]
    text = (
        f"{name} has {money} euros and buys {count} {first} at {price} euros each and {other_count} {second} at "
        f"{other_price} euros each. How much is left?"
    )
    return text, [*steps, subtract(money, cost + other_cost)], f"{money - cost - other_cost} euros"


def store(rng: Random) -> Question:
    """A stock that gets boxes in and gives pieces out."""
    stock, boxes, size = between(rng, 40, 400), between(rng, 2, 9), between(rng, 11, 48)
    thing = pick(rng, ("screws", "eggs", "candles", "bottles", "shirts", "stamps"))
    total = stock + boxes * size
    out = between(rng, 10, min(total, 300))
    steps = [*multiply(size, boxes), add(stock, boxes * size), subtract(total, out)]
    text = (
        f"A store has {stock} {thing}. It gets {boxes} boxes of {size} {thing} and sells {out}. "
        f"How many {thing} are there now?"
    )
    return text, steps, f"{total - out} {thing}"


def journey(rng: Random) -> Question:
    """When something ends that starts at a time of day and takes some minutes."""
    hour, minute, takes = between(rng, 5, 18), between(rng, 0, 11) * 5, between(rng, 2, 35) * 5
    vehicle = pick(rng, ("bus", "train", "ferry", "tram", "plane"))
    text = f"A {vehicle} leaves at {hour:02}:{minute:02} and takes {takes} minutes. When does it arrive?"
    steps, total = [add(minute, takes)], minute + takes
    while total >= 60:
        steps.append(f"{subtract(total, 60)}, hour {hour} + 1 = {hour + 1}")
        total, hour = total - 60, hour + 1
    return text, steps, f"{hour:02}:{total:02}"


def larger(rng: Random) -> Question:
    """Two products compared."""
    (left, by), (other, other_by) = ((between(rng, 11, 99), between(rng, 2, 9)) for _ in range(2))
    while left * by == other * other_by:
        other = between(rng, 11, 99)
    value, other_value = left * by, other * other_by
    sign, answer = (">", f"{left} * {by}") if value > other_value else ("<", f"{other} * {other_by}")
    steps = [*multiply(left, by), *multiply(other, other_by), f"{value} {sign} {other_value}"]
    return f"Which is larger, {left} * {by} or {other} * {other_by}?", steps, answer


def savings(rng: Random) -> Question:
    """Money put aside every week, with some of it spent."""
    name, start, weekly, weeks = pick(rng, FIRST_NAMES), between(rng, 10, 200), between(rng, 11, 60), between(rng, 2, 9)
    total = start + weekly * weeks
    spent = between(rng, 5, total)
    steps = [*multiply(weekly, weeks), add(start, weekly * weeks), subtract(total, spent)]
    text = (
        f"{name} has saved {start} euros, puts {weekly} euros aside in each of {weeks} weeks and then spends {spent} "
        f"euros. What remains?"
    )
    return text, steps, f"{total - spent} euros"


QUESTIONS: Sequence[Callable[[Random], Question]] = (
    chain,
    product,
    mixed,
    columns,
    shopping,
    store,
    journey,
    larger,
    savings,
)


def generate(rng: Random) -> Sample:
    """A question of any kind with its steps, one a line, and the answer in the last."""
    text, steps, answer = pick(rng, QUESTIONS)(rng)
    response = "\n".join([*steps, f"Answer: {answer}"])
    return Sample("math", text, text, response, key=text)
