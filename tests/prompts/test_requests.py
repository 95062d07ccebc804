"""From a prompt to requests: what its samples share, what each sampling key does, and what a model cannot serve."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from batchgen.engine.row import Row
from batchgen.engine.sampling.penalties import Penalties
from batchgen.engine.sampling.rules import Ban, Bias, Filters, Rules
from batchgen.errors import JobError
from batchgen.prompts.encode import Codec
from batchgen.prompts.noise_key import noise_key
from batchgen.types import Grammar, GrammarMatcher, Prompt, Request, RowError, RowKey, Sampling, ThinkingLimit
from tests.prompts.builders import THINKING_TEMPLATE, byte_level_tokenizer, write_model

PLACE = "in.parquet: row 7"
VOCAB = 512  # of the models made here; their tokenizers have fewer tokens


def codec_of(folder: Path, **keys: Any) -> Codec:
    return Codec.load(folder, **({"system": None, "chat": None} | keys))


def prompt_of(**sampling: Any) -> Prompt:
    return Prompt(7, text="hello", place=PLACE, sampling=Sampling(**sampling))


def requests_of(codec: Codec, samples: Sequence[int] = (0,), **sampling: Any) -> list[Request]:
    requests = codec.requests(prompt_of(**sampling), samples)
    assert isinstance(requests, list)
    return requests


def request_of(codec: Codec, **sampling: Any) -> Request:
    return requests_of(codec, **sampling)[0]


def require_refusal(codec: Codec, message: str, **sampling: Any) -> None:
    """As the job's own values and as a row's."""
    with pytest.raises(JobError) as caught:
        codec.require(Sampling(**sampling))
    assert str(caught.value) == message
    assert codec.requests(prompt_of(**sampling), [0, 1]) == RowError("bad_sampling", f"{PLACE}: {message}")


def tokens_of(codec: Codec, text: str) -> list[int]:
    tokens: list[int] = codec._tokenizer.encode(text, add_special_tokens=False)
    return tokens


# Samples of one prompt.


def test_samples_share_their_tokens_and_nothing_that_moves(byte_level_model: Path) -> None:
    codec = codec_of(byte_level_model)
    choice = Grammar("choice", '["a", "b"]')
    requests = requests_of(codec, [0, 3, 1], temperature=1.0, n=4, stop=("x",), grammar=choice)
    assert [request.key for request in requests] == [RowKey(7, 0), RowKey(7, 3), RowKey(7, 1)]
    assert all(request.tokens is requests[0].tokens for request in requests)
    for name in ("noise_key", "stop_matcher", "grammar_matcher"):
        assert len({id(getattr(request, name)) for request in requests}) == 3
    assert len({request.noise_key for request in requests}) == 3
    (x,) = tokens_of(codec, "x")
    assert [request.stop_matcher.push(x) for request in requests if request.stop_matcher] == [True] * 3


def test_no_samples_and_rows_that_are_errors(byte_level_model: Path) -> None:
    codec = codec_of(byte_level_model)
    assert codec.requests(prompt_of(), []) == []
    error = RowError("missing_prompt", "x")
    assert codec.requests(Prompt(0, error=error), [0]) is error
    assert codec.requests(Prompt(0, error=error), []) is error
    long = codec.requests(replace(prompt_of(), text="7" * 40), [0])
    assert isinstance(long, RowError)
    assert long.kind == "prompt_too_long"


@pytest.mark.parametrize(("max_tokens", "chars", "budget"), [(5, 4, 5), (256, 4, 27), (256, 30, 1), (1, 4, 1)])
def test_a_budget_ends_with_the_context(byte_level_model: Path, max_tokens: int, chars: int, budget: int) -> None:
    prompt = replace(prompt_of(max_tokens=max_tokens), text="7" * chars)
    requests = codec_of(byte_level_model, chat=False).requests(prompt, [0])
    assert isinstance(requests, list)
    assert (len(requests[0].tokens), requests[0].max_tokens) == (chars + 1, budget)


@pytest.mark.parametrize(
    ("name", "seed", "sample", "source"),
    [
        (None, 0, 0, "0 0 row 7"),
        (None, 2**63 - 1, 1023, "9223372036854775807 1023 row 7"),
        ("7", 5, 2, "5 2 text 7"),
        (7, 5, 2, "5 2 number 7"),
        (-7, 5, 2, "5 2 number -7"),
        ("é 日本\n", 1, 0, "1 0 text é 日本\n"),
        ("", 1, 0, "1 0 text "),
    ],
)
def test_noise_keys(name: int | str | None, seed: int, sample: int, source: str) -> None:
    expected = int.from_bytes(hashlib.blake2b(source.encode("utf-8")).digest()[:8], "big")
    assert noise_key(replace(prompt_of(seed=seed), id=name), sample) == expected


def test_noise_keys_are_part_of_the_format(byte_level_model: Path) -> None:
    assert noise_key(prompt_of(), 0) == 0x9174372418B5E7F
    assert request_of(codec_of(byte_level_model), seed=3).noise_key == noise_key(prompt_of(seed=3), 0)


# Thinking.


def test_the_template_is_told_of_thinking(thinking_model: Path) -> None:
    codec = codec_of(thinking_model)
    assert codec.render(prompt_of()) == "<s>[user]hello[assistant]"
    assert codec.render(prompt_of(thinking=True)) == "<s>[user]hello[assistant]<think>\n"
    assert codec.render(prompt_of(thinking=False)) == "<s>[user]hello[assistant]<think>\n\n</think>\n\n"
    for thinking in (None, True, False):
        codec.require(Sampling(thinking=thinking))


@pytest.mark.parametrize("thinking", [True, False])
def test_thinking_where_nothing_reads_it(
    byte_level_model: Path, sentence_piece_model: Path, thinking: bool, tmp_path: Path
) -> None:
    found = f"sampling.thinking: found {str(thinking).lower()}, but"
    no_use = f"{found} no chat template is in use that could be told; leave thinking out"
    unread = f"{found} the model's chat template does not read enable_thinking; leave thinking out"
    require_refusal(codec_of(byte_level_model), unread, thinking=thinking)
    require_refusal(codec_of(byte_level_model, chat=False), no_use, thinking=thinking)
    require_refusal(codec_of(sentence_piece_model), no_use, thinking=thinking)
    only_set = "{% set enable_thinking = true %}{{ enable_thinking }}{{ messages[0].content }}"
    require_refusal(codec_of(write_model(tmp_path, chat_template=only_set)), unread, thinking=thinking)


def test_a_thinking_budget_needs_a_token_that_ends_thinking(thinking_text_model: Path) -> None:
    message = (
        "sampling.thinking_budget: found 0, but the model's tokenizer has no token </think> to end thinking with; "
        "leave thinking_budget out"
    )
    require_refusal(codec_of(thinking_text_model), message, thinking_budget=0)


def test_a_thinking_budget_needs_a_token_that_begins_thinking(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(markers=("</think>",))
    codec = codec_of(write_model(tmp_path, tokenizer, chat_template=THINKING_TEMPLATE))
    message = (
        "sampling.thinking_budget: found 7, but the model's tokenizer has no token <think> by which to tell that "
        "thinking begins; leave thinking_budget out"
    )
    require_refusal(codec, message, thinking_budget=7)


@pytest.mark.parametrize(("thinking", "is_open"), [(None, False), (True, True), (False, False)])
def test_thinking_limits(thinking_model: Path, thinking: bool | None, is_open: bool) -> None:
    codec = codec_of(thinking_model)
    opened, closed = tokens_of(codec, "<think></think>")
    request = request_of(codec, thinking=thinking, thinking_budget=5)
    limit = request.thinking_limit
    assert limit == ThinkingLimit(5, opened, closed, is_open, limit.lead_tokens if limit else frozenset())
    assert request_of(codec, thinking=thinking).thinking_limit is None


@pytest.mark.parametrize("model", ["thinking_model", "thinking_pieces_model"])
def test_a_budget_counts_in_the_block_that_the_text_has(model: str, request: pytest.FixtureRequest) -> None:
    """White space and hidden tokens may stand before it, for the budget as for the text; nothing else may."""
    codec = codec_of(request.getfixturevalue(model))
    opened, closed = (codec._tokenizer.convert_tokens_to_ids(name) for name in ("<think>", "</think>"))
    hidden = sorted(codec._text._hidden - codec.eos_token_ids)
    one = request_of(codec, thinking_budget=3)
    leads = ["", "\n", "\n\n", " \n", "\t", "x", "\nx", "<", ".", "日"]
    for lead in [*(tokens_of(codec, lead) if lead else [] for lead in leads), *([token] for token in hidden)]:
        thought = [*lead, opened, *tokens_of(codec, "cat")]
        row = Row(one, 0.0, 0.0, codec.eos_token_ids, tokens=thought)
        _, reasoning = codec.completion(one, [*thought, closed])
        assert row.thinking_end() == (None if reasoning is None else (len(lead) + 4, closed)), lead
        assert Row(one, 0.0, 0.0, codec.eos_token_ids, tokens=lead).may_open_thinking == (reasoning is not None)


def test_under_a_grammar_a_block_begins_at_once(thinking_model: Path) -> None:
    """What stands before it would be the grammar's, which the token that closes the block may not break."""
    one = request_of(codec_of(thinking_model), thinking_budget=3, grammar=Grammar("regex", "\\s*a"))
    assert one.thinking_limit is not None
    assert one.thinking_limit.lead_tokens == frozenset()


# Tokens.


@pytest.mark.parametrize(
    ("key", "value"),
    [("logit_bias", ((3, 1.0), (VOCAB, 1.0))), ("stop_token_ids", (VOCAB, 3))],
)
def test_tokens_that_the_model_does_not_have(byte_level_model: Path, key: str, value: Any) -> None:
    codec = codec_of(byte_level_model)
    require_refusal(codec, f"sampling.{key}: found token id 512, must be at most 511, the model's last", **{key: value})
    codec.require(Sampling(logit_bias=((VOCAB - 1, 1.0),), stop_token_ids=(0, VOCAB - 1)))


def test_min_tokens_that_bar_every_token(thinking_model: Path) -> None:
    codec = codec_of(thinking_model)
    (closed,) = tokens_of(codec, "</think>")
    every = tuple(token for token in range(VOCAB) if token not in codec.eos_token_ids)
    message = (
        "sampling.min_tokens: found 2, but every token of the model is an end token or one of stop_token_ids, "
        "so none may stand before; name fewer stop_token_ids"
    )
    require_refusal(codec, message, min_tokens=2, stop_token_ids=every)
    message = (
        "sampling.thinking_budget: found 3, but the token </think> that must stand then ends the row, and min_tokens "
        f"bars that before 8 tokens; take {closed} out of stop_token_ids, or lower min_tokens to 3"
    )
    ends_thinking = {"thinking": True, "thinking_budget": 3, "stop_token_ids": (5, closed)}
    require_refusal(codec, message, min_tokens=8, **ends_thinking)
    codec.require(Sampling(min_tokens=3, **ends_thinking))
    codec.require(Sampling(min_tokens=2, stop_token_ids=every[1:]))
    codec.require(Sampling(min_tokens=2, stop_token_ids=every, ignore_eos=True))
    codec.require(Sampling(stop_token_ids=every))


def test_the_model_s_vocabulary_is_that_of_its_text_config(tmp_path: Path) -> None:
    nested = {"vocab_size": 500, "text_config": {"vocab_size": 400}}
    codec = codec_of(write_model(tmp_path, config=nested))
    codec.require(Sampling(stop_token_ids=(399,)))
    require_refusal(
        codec,
        "sampling.stop_token_ids: found token id 400, must be at most 399, the model's last",
        stop_token_ids=(400,),
    )


def test_the_token_that_ended_a_row_has_no_text(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    end, stop = vocabulary["b"], vocabulary["c"]
    codec = codec_of(write_model(tmp_path, tokenizer, generation={"eos_token_id": end}))

    def shown(tokens: Sequence[int], **sampling: Any) -> str:
        return codec.completion(request_of(codec, **sampling), tokens)[0]

    (a,) = tokens_of(codec, "a")
    assert shown([a, end]) == "a"
    assert shown([a, end], ignore_eos=True) == "ab"
    assert shown([a, end, stop], ignore_eos=True, stop_token_ids=(stop,)) == "ab"
    assert shown([a, end], ignore_eos=True, stop_token_ids=(end,)) == "a"
    assert shown([a, stop]) == "ac"
    assert shown([stop, a, stop], stop_token_ids=(stop,)) == "ca"
    assert shown([a, 1, a], ignore_eos=True) == "aa"  # the tokenizer's own end token is hidden wherever it stands
    assert shown([]) == ""


# Grammars.


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (
            Grammar("json_schema", '{"type": "nothing"}'),
            'sampling.json_schema: at #/type: "nothing" is no type, the types are string, number, '
            "integer, boolean, null, array, object",
        ),
        (Grammar("regex", "("), 'sampling.regex: unclosed group, at character 1 of "("'),
    ],
)
def test_grammars_that_nothing_can_be_held_to(byte_level_model: Path, grammar: Grammar, message: str) -> None:
    require_refusal(codec_of(byte_level_model), message, grammar=grammar)


def test_a_grammar_without_an_end_token(tmp_path: Path) -> None:
    settings = write_model(tmp_path) / "tokenizer_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token": None}))
    message = "sampling.choice: structured output: the model has no end token, so no completion could end"
    for sampling, columns in ((Sampling(grammar=Grammar("choice", '["a"]')), {}), (Sampling(), {"choice": "c"})):
        with pytest.raises(JobError) as caught:
            codec_of(tmp_path).require(sampling, columns)
        assert str(caught.value) == message
    codec_of(tmp_path).require(Sampling(), {"temperature": "c"})


@pytest.mark.parametrize("key", ["json_schema", "regex", "choice"])
def test_without_llguidance_no_job_with_a_grammar_begins(
    byte_level_model: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """Whether the job has the grammar or a column does."""
    monkeypatch.setattr("batchgen.grammar.errors.find_spec", lambda name: None)
    codec = codec_of(byte_level_model)
    grammar = Grammar(key, "[]")  # type: ignore[arg-type]
    for sampling, columns in ((Sampling(grammar=grammar), {}), (Sampling(), {"stop": "s", key: "c"})):
        with pytest.raises(JobError) as caught:
            codec.require(sampling, columns)
        message = f"sampling.{key}: needs llguidance, which is not installed: pip install 'batchgen[grammar]'"
        assert str(caught.value) == message
    codec.require(Sampling(), {"stop": "s"})


@pytest.mark.parametrize("key", ["thinking", "thinking_budget"])
def test_a_column_of_a_key_that_the_model_cannot_serve_is_no_row_s_fault(
    byte_level_model: Path, thinking_model: Path, thinking_text_model: Path, key: str
) -> None:
    reasons = {
        "thinking": "the model's chat template does not read enable_thinking",
        "thinking_budget": "the model's tokenizer has no token </think> to end thinking with",
    }
    unable = byte_level_model if key == "thinking" else thinking_text_model
    with pytest.raises(JobError) as caught:
        codec_of(unable).require(Sampling(), {key: "c"})
    assert str(caught.value) == f"sampling.{key}: found column c, but {reasons[key]}; leave {key} out"
    codec_of(thinking_model).require(Sampling(), {key: "c"})


def allowed_next(matcher: GrammarMatcher | None) -> set[int]:
    assert matcher is not None
    masks = np.zeros((1, VOCAB // 32), np.uint32)
    assert matcher.fill([], masks) == 0
    return set(np.flatnonzero(np.unpackbits(masks.view(np.uint8), bitorder="little")).tolist())


def test_a_grammar_begins_behind_the_thinking(thinking_model: Path) -> None:
    codec = codec_of(thinking_model)
    opened, closed = tokens_of(codec, "<think></think>")
    a, b = tokens_of(codec, "ab")
    ends = codec.eos_token_ids

    def begun(thinking: bool | None, *tokens: int) -> set[int]:
        matcher = request_of(codec, thinking=thinking, grammar=Grammar("choice", '["a"]')).grammar_matcher
        assert matcher is not None
        matcher.advance(tokens)
        return allowed_next(matcher)

    assert {a, b, closed} < begun(True)
    assert not begun(True) & ends
    line_ends = set(tokens_of(codec, "\n"))
    assert begun(True, b, closed) == {a} | line_ends
    assert begun(True, b, closed, a) == ends
    assert begun(False) == {a}
    assert begun(None) == {a, opened}
    assert begun(None, a) == ends
    assert begun(None, opened, b, closed) == {a} | line_ends


def test_a_grammar_of_a_model_without_a_think_token(thinking_text_model: Path) -> None:
    """A completion that may not open a block is all answer, also where it happens to look like one."""
    codec = codec_of(thinking_text_model)
    request = request_of(codec, grammar=Grammar("regex", "<think>x"))
    assert codec.completion(request, tokens_of(codec, "<think>x")) == ("<think>x", None)
    assert codec.completion(request_of(codec), tokens_of(codec, "<think>x")) == ("", "x")
    opened = request_of(codec, thinking=True, grammar=Grammar("choice", '["a"]'))
    assert codec.completion(opened, tokens_of(codec, "why</think>a")) == ("a", "why")


# Every key does something.

COMPANY = Sampling(
    temperature=0.8, repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.1, thinking=True, min_tokens=1
)
"""What some keys have no effect without."""
OTHER: dict[str, Any] = {
    "max_tokens": 9,
    "min_tokens": 2,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 4,
    "min_p": 0.5,
    "repetition_penalty": 1.5,
    "repetition_context_size": 3,
    "presence_penalty": 0.5,
    "presence_context_size": 3,
    "frequency_penalty": 0.5,
    "frequency_context_size": 3,
    "logit_bias": ((3, 1.0),),
    "stop": ("x",),
    "stop_token_ids": (3,),
    "ignore_eos": True,
    "seed": 1,
    "n": 2,
    "thinking": False,
    "thinking_budget": 4,
    "grammar": Grammar("choice", '["a"]'),
}
"""For each key another value than COMPANY has."""
READERS: dict[str, Callable[[Row], Any]] = {
    "Rules.temperature": lambda row: Rules([row]).temperature,
    "Filters": lambda row: Filters.of([row.request.sampling]),
    "Bias": lambda row: Bias.of([row.request.sampling]),
    "Penalties": lambda row: Penalties.of([row.request.sampling], lambda width: [row.tail(width)]),
    "Ban": lambda row: Ban.of([row]),
    "Row.end_token_ids": lambda row: row.end_token_ids,
}
"""What of the engine reads a request's sampling."""
EFFECTS: dict[str, set[str]] = {
    "max_tokens": {"max_tokens"},
    "min_tokens": {"Ban"},
    "temperature": {"Rules.temperature"},
    "top_p": {"Filters"},
    "top_k": {"Filters"},
    "min_p": {"Filters"},
    "repetition_penalty": {"Penalties"},
    "repetition_context_size": {"Penalties"},
    "presence_penalty": {"Penalties"},
    "presence_context_size": {"Penalties"},
    "frequency_penalty": {"Penalties"},
    "frequency_context_size": {"Penalties"},
    "logit_bias": {"Bias"},
    "stop": {"stop_matcher"},
    "stop_token_ids": {"Ban", "Row.end_token_ids"},
    "ignore_eos": {"Ban", "Row.end_token_ids"},
    "seed": {"noise_key"},
    "n": {"key"},
    "thinking": {"tokens"},
    "thinking_budget": {"thinking_limit"},
    "grammar": {"grammar_matcher"},
}
"""For each key, the fields of the requests or the readers in the engine that see it."""


def plain(value: Any) -> Any:
    """A reader's values in a form that can be compared."""
    if isinstance(value, mx.array):
        return value.tolist()
    if isinstance(value, tuple):
        return [plain(one) for one in value]
    if is_dataclass(value):
        return [plain(getattr(value, field.name)) for field in fields(value)]
    return value


def views(codec: Codec, sampling: Sampling) -> dict[str, Any]:
    """What codec and engine make of it, for all samples of a prompt: by a request's field, or a reader's name."""
    requests = codec.requests(replace(prompt_of(), sampling=sampling), range(sampling.n))
    assert isinstance(requests, list)
    seen: dict[str, Any] = {"key": [request.key for request in requests]}
    for name in ("tokens", "max_tokens", "noise_key", "thinking_limit"):
        seen[name] = getattr(requests[0], name)
    for name in ("stop_matcher", "grammar_matcher"):
        seen[name] = getattr(requests[0], name) is not None
    row = Row(requests[0], 0.0, 0.0, codec.eos_token_ids, tokens=[5])
    return seen | {name: plain(reader(row)) for name, reader in READERS.items()}


@pytest.mark.parametrize("key", [field.name for field in fields(Sampling)])
def test_every_key_has_its_effect(thinking_model: Path, key: str) -> None:
    assert key in EFFECTS, f"{key}: say here what reads it"
    codec = codec_of(thinking_model)
    before, after = (views(codec, sampling) for sampling in (COMPANY, replace(COMPANY, **{key: OTHER[key]})))
    changed = {name for name in before if before[name] != after[name]}
    assert changed
    assert changed >= EFFECTS[key] > set()


def test_the_engine_gets_the_row_s_own_sampling(thinking_model: Path) -> None:
    sampling = replace(COMPANY, **{key: value for key, value in OTHER.items() if key != "thinking"})
    codec = codec_of(thinking_model)
    prompt = replace(prompt_of(), sampling=sampling)
    requests = codec.requests(prompt, [0, 1])
    assert isinstance(requests, list)
    assert all(request.sampling is sampling for request in requests)
