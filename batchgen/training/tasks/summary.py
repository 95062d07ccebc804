"""The summary task: a short report to its one-line summary. The summary is a function of the report's facts.

Makes the report's running text: the lead, then the rest in any order with sentences between that say nothing to the
point. Owns the wording of the request.
"""

from random import Random

from batchgen.training.tasks.reports import REPORTS, clock_time, person
from batchgen.training.tasks.sample import Sample, between, chance, pick

REQUESTS = ("Summarize:\n", "Summarize this report:\n", "Summarize in one line:\n")


def summary_prompt(text: str) -> str:
    """What jobs/summarize.yaml and jobs/eval.yaml render for a report."""
    return REQUESTS[0] + text


def _distractor(rng: Random) -> str:
    return pick(
        rng,
        (
            f"{person(rng)} took the photos.",
            f"Questions go to {person(rng)}.",
            f"This note was typed at {clock_time(rng)}.",
            f"The next report follows in {between(rng, 2, 30)} days.",
            f"Page {between(rng, 2, 40)} has more on this.",
            f"{person(rng)} sends greetings.",
            f"The phone was busy until {clock_time(rng)}.",
            f"Please file this under number {between(rng, 100, 999)}.",
        ),
    )


def generate(rng: Random) -> Sample:
    """A report of any kind with its summary; one request in five is worded otherwise than the job words it."""
    report = pick(rng, REPORTS)(rng)
    sentences = list(report.body)
    for _ in range(between(rng, 0, 3)):
        sentences.append(_distractor(rng))
    rng.shuffle(sentences)
    text = " ".join([report.lead, *sentences])
    request = pick(rng, REQUESTS[1:]) if chance(rng, 0.2) else REQUESTS[0]
    return Sample("summary", text, request + text, report.summary, key=report.summary)
