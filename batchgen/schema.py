"""The one list of result columns: names, Arrow types, and what each means.

Documentation, parts, final file and reports all read this list; a column exists nowhere else.
"""

from collections.abc import Collection

import pyarrow as pa

from batchgen.types import Result

KEY_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (("row", pa.int64()), ("sample", pa.int32()))

RESULT_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("sample", pa.int32(), "number of the sample of this prompt, from 0"),
    (
        "completion",
        pa.string(),
        "generated text without the end token, up to any stop string; empty if the model ended at once; null on error",
    ),
    ("reasoning", pa.string(), "text of the model's thinking block; null if it has none"),
    ("status", pa.string(), "`ok` or `error`"),
    ("error_kind", pa.string(), "why a row has no completion; null if it has one"),
    ("error_message", pa.string(), "the same in one sentence, with file and row"),
    (
        "finish_reason",
        pa.string(),
        "`stop` (end token, stop token or stop string) or `length` (budget); null on error",
    ),
    ("prompt_tokens", pa.int32(), "tokens of the prompt as the model read it"),
    ("cached_prompt_tokens", pa.int32(), "how many of them came from a shared prefix"),
    ("completion_tokens", pa.int32(), "generated tokens, the end token included"),
    ("verify_passes", pa.int32(), "target passes after the prompt's"),
    ("drafted_tokens", pa.int32(), "tokens the drafter proposed, up to the row's last token"),
    (
        "accepted_tokens",
        pa.int32(),
        "proposed tokens that the target accepted; a row's last token counts as the target's own",
    ),
    (
        "acceptance_length",
        pa.float64(),
        "tokens per verify pass on average, (accepted_tokens + verify_passes) / verify_passes; null without passes",
    ),
    ("acceptance_counts", pa.list_(pa.int32()), "how many passes accepted 0, 1, ..., block_size - 1 drafts"),
    ("queue_s", pa.float64(), "seconds from reading the row to the start of its prefill"),
    ("prefill_s", pa.float64(), "seconds from there to its first token"),
    ("decode_s", pa.float64(), "seconds from its first token to its last"),
    ("tokens_per_s", pa.float64(), "completion_tokens / (prefill_s + decode_s); null if that is 0 seconds"),
    ("seed", pa.int64(), "seed of the row's sampling; null on error"),
    ("attempt", pa.int32(), "how many runs of this job had started when the row was decoded, from 1"),
    ("run_id", pa.string(), "which start of the job decoded the row"),
)

# Columns that a job may ask for; each is named by the key of the job's output section that does.
OPTIONAL_COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("token_ids", pa.list_(pa.int32()), "the generated tokens, the end token included; null on error"),
    (
        "logprobs",
        pa.list_(pa.float32()),
        "natural log probability of each of them, after bias, penalties and grammar, before temperature and filters",
    ),
)

RESULT_NAMES = tuple(name for name, _, _ in RESULT_COLUMNS)


def result_schema(optional: Collection[str] = ()) -> pa.Schema:
    """Arrow schema of the result columns, all nullable, in their order in the final file.

    `optional` names those of `OPTIONAL_COLUMNS` that are wanted.
    """
    wanted = [*RESULT_COLUMNS, *(column for column in OPTIONAL_COLUMNS if column[0] in optional)]
    return pa.schema([pa.field(name, kind) for name, kind, _ in wanted])


def part_schema() -> pa.Schema:
    """Arrow schema of a part: the row's key, then all result columns there are (the key holds `sample`)."""
    keys = [pa.field(name, kind, nullable=False) for name, kind in KEY_COLUMNS]
    columns = [pa.field(name, kind) for name, kind, _ in (*RESULT_COLUMNS, *OPTIONAL_COLUMNS) if name != "sample"]
    return pa.schema(keys + columns)


_PART_NAMES = tuple(part_schema().names)


def acceptance_length(accepted_tokens: int, verify_passes: int) -> float | None:
    """Tokens that a verify pass yields on average, its own counted; None without passes."""
    return (accepted_tokens + verify_passes) / verify_passes if verify_passes else None


def result_values(result: Result) -> dict[str, object]:
    """A result as one dict over `part_schema()`; figures of work not done are null, never NaN."""
    generation = result.generation
    values: dict[str, object] = dict.fromkeys(_PART_NAMES)
    values |= {
        "row": result.key.row,
        "sample": result.key.sample,
        "completion": result.completion,
        "reasoning": result.reasoning,
        "status": "ok" if result.error is None else "error",
        "error_kind": None if result.error is None else result.error.kind,
        "error_message": None if result.error is None else result.error.message,
        "prompt_tokens": result.prompt_tokens,
        "queue_s": result.queue_s,
        "seed": result.seed,
        "attempt": result.attempt,
        "run_id": result.run_id,
    }
    if generation is not None:
        seconds = generation.prefill_s + generation.decode_s
        values |= {
            "finish_reason": generation.finish_reason,
            "cached_prompt_tokens": generation.cached_prompt_tokens,
            "completion_tokens": len(generation.tokens),
            "verify_passes": generation.verify_passes,
            "drafted_tokens": generation.drafted_tokens,
            "accepted_tokens": generation.accepted_tokens,
            "acceptance_length": acceptance_length(generation.accepted_tokens, generation.verify_passes),
            "acceptance_counts": list(generation.acceptance_counts),
            "prefill_s": generation.prefill_s,
            "decode_s": generation.decode_s,
            "tokens_per_s": len(generation.tokens) / seconds if seconds > 0 else None,
            "token_ids": list(generation.tokens),
            "logprobs": None if generation.logprobs is None else list(generation.logprobs),
        }
    return values
