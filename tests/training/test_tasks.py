"""Generators: the same for a seed, right by an independent reading, and never held out and trained on at once."""

import re
from itertools import islice

import pytest

from batchgen.training.tasks import GENERATORS, TRAINING_MIX, Sample, task_stream, training_stream
from batchgen.training.tasks.reports import MONTHS
from batchgen.training.tasks.words import ANIMALS

WITH_REFERENCE = ("summary", "math", "code")


def samples(task: str, number: int = 2000, seed: int = 7) -> list[Sample]:
    return list(islice(task_stream(task, "train", seed), number))


@pytest.mark.parametrize("task", GENERATORS)
def test_stream_is_a_function_of_its_seed(task: str) -> None:
    first, again, other = samples(task, 50), samples(task, 50), samples(task, 50, seed=8)
    assert first == again
    assert first != other


@pytest.mark.parametrize("task", GENERATORS)
def test_no_key_is_on_both_sides(task: str) -> None:
    held_out = {sample.key for sample in islice(task_stream(task, "held_out", 3), 300)}
    trained = {sample.key for sample in samples(task, 5000)}
    assert sorted(held_out & trained) == []


def test_training_mix_holds_every_task_in_its_share() -> None:
    drawn = [sample.task for sample in islice(training_stream(0), 4000)]
    for task, share in TRAINING_MIX.items():
        assert abs(drawn.count(task) / len(drawn) - share) < 0.03


@pytest.mark.parametrize("task", WITH_REFERENCE)
def test_reference_is_a_function_of_the_text(task: str) -> None:
    responses: dict[str, str] = {}
    for sample in samples(task, 5000):
        assert responses.setdefault(sample.text, sample.response) == sample.response


def test_every_step_of_arithmetic_is_true() -> None:
    num_steps = 0
    for sample in samples("math"):
        for left, sign, right, result in re.findall(r"(\d+) ([-+*]) (\d+) = (\d+)", sample.response):
            value = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}[sign]
            if "in columns" not in sample.text:
                assert value == int(result), sample
            num_steps += 1
    assert num_steps > 4000


def test_answer_of_an_expression_is_its_value() -> None:
    num_expressions = 0
    for sample in samples("math"):
        if match := re.fullmatch(r"Compute ([-+* \d]+)\.", sample.text):
            assert sample.response.endswith(f"\nAnswer: {eval(match[1])}")
            num_expressions += 1
        elif match := re.fullmatch(r"Add (\d+) and (\d+) in columns\.", sample.text):
            assert sample.response.endswith(f"\nAnswer: {int(match[1]) + int(match[2])}")
            num_expressions += 1
    assert num_expressions > 500


def test_journey_ends_when_the_clock_says() -> None:
    found = 0
    for sample in samples("math"):
        if match := re.search(r"leaves at (\d\d):(\d\d) and takes (\d+) minutes", sample.text):
            hours, minutes, takes = (int(part) for part in match.groups())
            total = hours * 60 + minutes + takes
            assert sample.response.endswith(f"Answer: {total // 60:02}:{total % 60:02}")
            found += 1
    assert found > 50


def test_summary_says_only_what_the_report_says() -> None:
    """Names and numbers of a summary stand in its report, but for sums."""
    for sample in samples("summary"):
        summary = sample.response
        if "animals, mostly" in summary:
            counts = re.findall(rf"(\d+) ({'|'.join(ANIMALS)})", sample.text)
            assert re.search(rf": {sum(int(number) for number, _ in counts)} animals", summary), sample
            assert f"mostly {max(counts, key=lambda count: int(count[0]))[1]}" in summary
            summary = re.sub(r": \d+ animals", "", summary)
        for word in re.findall(r"[A-Z]\w+|\d+", summary.replace("Order", "order").replace("The ", "the ")):
            assert word in sample.text or word == "Ticket", (word, sample)


def test_sales_summary_tells_which_way_they_went() -> None:
    found = 0
    for sample in samples("summary"):
        if match := re.search(r"sales (\w+) from (\d+) to (\d+) in (\w+)", sample.response):
            before, after = int(match[2]), int(match[3])
            assert match[1] == ("rose" if after > before else "fell" if after < before else "stayed")
            months = [month for month in MONTHS if month in sample.text]
            assert match[4] == months[-1] or MONTHS.index(match[4]) - 1 == MONTHS.index(months[0])
            found += 1
    assert found > 100


def test_every_function_compiles_and_bears_the_name_asked_for() -> None:
    for sample in samples("code"):
        namespace: dict[str, object] = {}
        exec(compile(sample.response, "sample", "exec"), namespace)
        [name] = re.findall(r"function (\w+)\(", sample.text)
        assert callable(namespace[name])


def test_functions_do_what_the_text_says() -> None:
    found = 0
    for sample in samples("code"):
        if match := re.search(r"(\w+)\((\w+)\) that returns \2, but (at most|at least) (\d+)\.", sample.text):
            namespace: dict[str, object] = {}
            exec(sample.response, namespace)
            bound, function = int(match[4]), namespace[match[1]]
            assert callable(function)
            assert [function(bound - 1), function(bound + 1)] == (
                [bound - 1, bound] if match[3] == "at most" else [bound, bound + 1]
            )
            found += 1
    assert found > 50


def test_prose_tells_four_sentences() -> None:
    for sample in samples("prose", 200):
        assert sample.response.count(".") == 4
        assert sample.prompt.endswith(sample.text)
