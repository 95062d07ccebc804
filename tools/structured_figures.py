"""Decodes rows of the bundled pair against five JSON schemas, checks every one, and measures what the grammar costs.

    python -m tools.structured_figures --rows 40 --markdown

Each schema gets the first --rows prompts of jobs/eval.yaml, its tasks in turn. Every completion must end within its
budget, parse, and validate with jsonschema; and a row must be token for token the same with the drafter and without, or
the tool fails. Four sides are timed, one after the other in each round: with the grammar and without, with the drafter
and without. A free row has no end token and the budget of the row that the grammar made, so that all sides write
equally many tokens; what they write differs, and so does how well it can be guessed.

The bundled model has learned no JSON: what stands in the fields has no meaning.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, zip_longest
from typing import Any

import jsonschema
import numpy as np
import numpy.typing as npt

from batchgen import engine
from batchgen.engine.decoder import BatchDecoder
from batchgen.grammar import GrammarFactory
from batchgen.job.load import load_job
from batchgen.prompts.encode import Codec
from batchgen.prompts.model_files import load_tokenizer, read_json, text_config
from batchgen.prompts.text import Detokenizer
from batchgen.report.table import figure, format_table
from batchgen.types import Generation, Grammar, GrammarMatcher, Request, RowKey, Sampling
from tools.sampling_figures import JOB, ROOT, Row, markdown, noise_key, read_rows

MAX_TOKENS = 400
_TEXT = {"type": "string", "minLength": 1, "maxLength": 20}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 9999}


def _closed(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "label": _closed(label={"enum": ["report", "math", "code", "other"]}, sure={"type": "boolean"}),
    "answer": _closed(question=_TEXT, answer={"type": "number", "minimum": -1000, "maximum": 1000, "multipleOf": 0.5}),
    "list": {"type": "array", "items": _TEXT, "minItems": 2, "maxItems": 5},
    "record": _closed(
        name=_TEXT, day={"type": "string", "format": "date"}, number=_COUNT, note={"anyOf": [_TEXT, {"type": "null"}]}
    ),
    "tree": {
        "$ref": "#/$defs/part",
        "$defs": {
            "leaf": _closed(id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, count=_COUNT),
            "part": _closed(title=_TEXT, parts={"type": "array", "items": {"$ref": "#/$defs/leaf"}, "maxItems": 3}),
        },
    },
}
HEADER = [
    "schema",
    "rows",
    "tokens",
    "% of drafts allowed",
    "% of drafts accepted",
    "tokens per pass",
    "µs per mask",
]
SPEED_HEADER = ["", "plain, tokens/s", "drafted, tokens/s"]


@dataclass(slots=True)
class TimedMatcher:
    """Passes everything on, and notes how long masks take and how many drafts they leave."""

    inner: GrammarMatcher
    seconds: float = 0.0
    num_masks: int = 0
    num_drafts: int = 0
    num_allowed: int = 0

    def fill(self, drafts: Sequence[int], masks: npt.NDArray[np.uint32]) -> int:
        start = time.perf_counter()
        allowed = self.inner.fill(drafts, masks)
        self.seconds += time.perf_counter() - start
        self.num_masks += allowed + 1
        self.num_drafts += len(drafts)
        self.num_allowed += allowed
        return allowed

    def advance(self, tokens: Sequence[int]) -> None:
        self.inner.advance(tokens)

    def failure(self, num_tokens: int) -> str | None:
        return self.inner.failure(num_tokens)


@dataclass(slots=True)
class Side:
    """What one side of the comparison made, and how fast in each round."""

    generations: dict[RowKey, Generation] = field(default_factory=dict)
    matchers: dict[RowKey, TimedMatcher] = field(default_factory=dict)
    speeds: list[float] = field(default_factory=list)

    def decode(self, decoder: BatchDecoder, requests: Sequence[Request]) -> None:
        waiting, done = list(requests), []
        start = time.perf_counter()
        while waiting or decoder.num_rows:
            free = decoder.max_rows - decoder.num_rows
            decoder.admit(waiting[:free])
            waiting = waiting[free:]
            done += decoder.step()
        self.speeds.append(sum(len(one.tokens) for one in done) / (time.perf_counter() - start))
        self.generations = {one.key: one for one in done}
        self.matchers = {
            one.key: one.grammar_matcher for one in requests if isinstance(one.grammar_matcher, TimedMatcher)
        }


class Bench:
    """The bundled pair in float32, with and without its drafter, and the rows: one for each schema and prompt."""

    def __init__(self, num_rows: int, temperature: float, block_size: int | None = None) -> None:
        job = load_job(JOB)
        assert job.drafter is not None
        model = ROOT / job.model
        codec = Codec.load(model, system=None, chat=job.input.chat)
        vocab_size = text_config(read_json(model / "config.json"))["vocab_size"]
        tokenizer = load_tokenizer(model)
        self._factory = GrammarFactory(tokenizer, vocab_size, codec.eos_token_ids)
        self._decode = Detokenizer(tokenizer, model).text
        self._sampling = Sampling(temperature=temperature)
        prompts = _in_turn(read_rows(-(-num_rows // 3)))[:num_rows]
        self.rows = {
            RowKey(number, 0): (name, row)
            for number, (name, row) in enumerate((name, row) for name in SCHEMAS for row in prompts)
        }
        options = engine.EngineOptions(codec.eos_token_ids, lambda: 0.0, dtype="float32")
        self.decoders = {
            "plain": engine.load(model, None, options),
            "drafted": engine.load(model, ROOT / job.drafter, replace(options, block_size=block_size)),
        }

    def structured(self) -> list[Request]:
        """All rows, each held to its schema."""
        return [
            replace(self._request(key, row, MAX_TOKENS), grammar_matcher=TimedMatcher(self._matcher(name)))
            for key, (name, row) in self.rows.items()
        ]

    def free(self, lengths: dict[RowKey, int]) -> list[Request]:
        """The same rows without grammar and end, each of the length given."""
        requests = [self._request(key, row, lengths[key]) for key, (_, row) in self.rows.items()]
        return [replace(one, sampling=replace(one.sampling, ignore_eos=True)) for one in requests]

    def faults(self, side: Side) -> list[str]:
        """What is wrong with its completions; nothing may be."""
        found = []
        for key, generation in sorted(side.generations.items()):
            name, row = self.rows[key]
            text = self._decode(generation.tokens)
            if generation.finish_reason != "stop":
                found.append(f"{name} {row.id}: did not end: {text}")
                continue
            try:
                jsonschema.Draft202012Validator(SCHEMAS[name]).validate(json.loads(text))
            except (ValueError, jsonschema.ValidationError) as error:
                found.append(f"{name} {row.id}: {text}: {error}")
        return found

    def _request(self, key: RowKey, row: Row, max_tokens: int) -> Request:
        return Request(key, row.tokens, max_tokens, self._sampling, noise_key(f"{key.row} {row.id}", 0))

    def _matcher(self, name: str) -> GrammarMatcher:
        return self._factory.matcher(Grammar("json_schema", json.dumps(SCHEMAS[name])))


def _in_turn(rows: Sequence[Row]) -> list[Row]:
    """The rows with their tasks alternating."""
    tasks = {row.task: [one for one in rows if one.task == row.task] for row in rows}
    return [row for row in chain.from_iterable(zip_longest(*tasks.values())) if row is not None]


def measure(bench: Bench, num_rounds: int) -> dict[tuple[str, str], Side]:
    """Sides by what holds the rows (grammar, free) and by decoder."""
    sides = {(kind, name): Side() for kind in ("grammar", "free") for name in bench.decoders}
    for _ in range(num_rounds):
        for name, decoder in bench.decoders.items():
            sides["grammar", name].decode(decoder, bench.structured())
        made = sides["grammar", "plain"].generations
        lengths = {key: len(generation.tokens) for key, generation in made.items()}
        for name, decoder in bench.decoders.items():
            sides["free", name].decode(decoder, bench.free(lengths))
    return sides


def faults_of(bench: Bench, sides: dict[tuple[str, str], Side]) -> list[str]:
    """Completions that are not what they must be, and rows that the drafter changed."""
    plain, drafted = (sides["grammar", name] for name in ("plain", "drafted"))
    changed = [
        f"row {key.row}: the drafter changes it"
        for key, generation in plain.generations.items()
        if generation.tokens != drafted.generations[key].tokens
    ]
    return [*bench.faults(plain), *changed]


def lines_of(bench: Bench, side: Side) -> list[list[str]]:
    """Under HEADER: a line for each schema and one for all."""
    lines = []
    for name in (*SCHEMAS, "all"):
        keys = [key for key, (schema, _) in bench.rows.items() if name in ("all", schema)]
        rows, matchers = [side.generations[key] for key in keys], [side.matchers[key] for key in keys]
        num_tokens = sum(len(row.tokens) for row in rows)
        passes = sum(row.verify_passes for row in rows)
        lines.append(
            [
                name,
                str(len(rows)),
                str(num_tokens),
                _share(sum(one.num_allowed for one in matchers), sum(one.num_drafts for one in matchers)),
                _share(sum(row.accepted_tokens for row in rows), sum(row.drafted_tokens for row in rows)),
                figure((num_tokens - len(rows)) / passes if passes else None, 2),
                figure(1e6 * sum(one.seconds for one in matchers) / sum(one.num_masks for one in matchers), 1),
            ]
        )
    return lines


def speed_lines(sides: dict[tuple[str, str], Side]) -> list[list[str]]:
    """Under SPEED_HEADER: the middle round's tokens per second."""
    labels = {"grammar": "with grammar", "free": "without"}
    return [
        [label, *(figure(statistics.median(sides[kind, name].speeds), 0) for name in ("plain", "drafted"))]
        for kind, label in labels.items()
    ]


def _share(part: int, whole: int) -> str:
    return figure(100 * part / whole if whole else None, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="JSON of five schemas from the bundled pair: validity and cost.")
    parser.add_argument("--rows", type=int, default=40, help="rows of each schema (default: 40, so 200 rows)")
    parser.add_argument("--rounds", type=int, default=3, help="times that all sides are run (default: 3)")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--block", type=int, help="positions that a verify pass checks (default: the drafter's own)")
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    options = parser.parse_args()
    if (
        min(options.rows, options.rounds) < 1
        or options.temperature < 0
        or (options.block is not None and options.block < 2)
    ):
        parser.error("--rows and --rounds must be at least 1, --block at least 2, and --temperature at least 0")
    bench = Bench(options.rows, options.temperature, options.block)
    sides = measure(bench, options.rounds)
    faults = faults_of(bench, sides)
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{len(bench.rows) - len(faults)} of {len(bench.rows)} rows end, parse, validate and are the same drafted\n")
    show = markdown if options.markdown else format_table
    print(show(HEADER, lines_of(bench, sides["grammar", "drafted"])), end="\n\n")
    print(show(SPEED_HEADER, speed_lines(sides)))
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
