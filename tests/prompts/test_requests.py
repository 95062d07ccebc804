"""Requests of a prompt: what its samples share, what is their own, and sampling that a model cannot serve."""

import hashlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from batchgen.errors import JobError
from batchgen.prompts.encode import Codec
from batchgen.types import Grammar, Prompt, Request, RowError, Sampling, ThinkingLimit

PLACE = "in.parquet: row 7"
PLAIN = Sampling()


def codec_of(folder: Path, chat: bool | None = None) -> Codec:
    return Codec.load(folder, system=None, chat=chat)


def requests_of(codec: Codec, sampling: Sampling = PLAIN, num: int = 1, **keys: Any) -> list[Request]:
    requests = codec.requests(Prompt(7, text="hello", place=PLACE, sampling=sampling, **keys), range(num))
    assert isinstance(requests, list)
    return requests


def refusal_of(codec: Codec, sampling: Sampling) -> str:
    """What a job is told of its own values, after making sure that a row is told the same of its column's."""
    with pytest.raises(JobError) as caught:
        codec.require(sampling)
    found = codec.requests(Prompt(7, text="hello", place=PLACE, sampling=sampling), [0])
    assert found == RowError("bad_sampling", f"{PLACE}: {caught.value}")
    return str(caught.value)


def test_samples_share_their_tokens_and_nothing_else(byte_level_model: Path) -> None:
    sampling = Sampling(stop=("x",), grammar=Grammar("regex", "a+"))
    first, second = requests_of(codec_of(byte_level_model), sampling, 2)
    assert first.tokens is second.tokens
    assert (first.key, second.key) == ((7, 0), (7, 1))
    assert first.noise_key != second.noise_key
    assert first.stop_matcher is not second.stop_matcher
    assert first.grammar_matcher is not second.grammar_matcher


def hashed(source: str) -> int:
    return int.from_bytes(hashlib.blake2b(source.encode()).digest()[:8], "big")


@pytest.mark.parametrize(
    ("row_id", "source"), [(None, "5 1 row 7"), ("a b", "5 1 text a b"), (12, "5 1 number 12"), ("12", "5 1 text 12")]
)
def test_the_noise_key_is_the_seed_the_sample_and_the_row(
    byte_level_model: Path, row_id: int | str | None, source: str
) -> None:
    requests = requests_of(codec_of(byte_level_model), Sampling(seed=5), 2, id=row_id)
    assert requests[1].noise_key == hashed(source)


def test_the_budget_is_what_the_context_leaves(byte_level_model: Path) -> None:
    codec = codec_of(byte_level_model)
    (request,) = requests_of(codec, Sampling(max_tokens=99))
    assert codec.context_length is not None
    assert request.max_tokens == codec.context_length - len(request.tokens)
    assert requests_of(codec, Sampling(max_tokens=2))[0].max_tokens == 2


def test_a_template_is_told_of_thinking(thinking_model: Path, byte_level_model: Path) -> None:
    codec = codec_of(thinking_model)
    texts = [codec.render(Prompt(0, text="x", sampling=Sampling(thinking=told))) for told in (None, True, False)]
    assert isinstance(texts[0], str)
    assert texts == [texts[0], f"{texts[0]}<think>\n", f"{texts[0]}<think>\n</think>\n\n"]
    codec.require(Sampling(thinking=True))
    assert refusal_of(codec_of(byte_level_model), Sampling(thinking=False)) == (
        "sampling.thinking: found false, but the model's chat template does not read enable_thinking; "
        "leave thinking out"
    )
    assert refusal_of(codec_of(thinking_model, chat=False), Sampling(thinking=True)) == (
        "sampling.thinking: found true, but no chat template is in use that could be told; leave thinking out"
    )


@pytest.mark.parametrize("thinking", [None, True, False])
def test_a_thinking_budget_knows_whether_the_prompt_opened_the_block(
    thinking_model: Path, thinking: bool | None
) -> None:
    codec = codec_of(thinking_model)
    opening, closing = codec._tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    (request,) = requests_of(codec, Sampling(thinking=thinking, thinking_budget=3))
    assert request.thinking_limit == ThinkingLimit(3, opening, closing, thinking is True)


def test_a_thinking_budget_needs_a_token_that_ends_thinking(sentence_piece_model: Path) -> None:
    assert refusal_of(codec_of(sentence_piece_model), Sampling(thinking_budget=3)) == (
        "sampling.thinking_budget: found 3, but the model's tokenizer has no token </think> to end thinking with; "
        "leave thinking_budget out"
    )


@pytest.mark.parametrize(
    ("key", "sampling"),
    [
        ("logit_bias", Sampling(logit_bias=((511, 1.0), (512, 1.0)))),
        ("stop_token_ids", Sampling(stop_token_ids=(512,))),
    ],
)
def test_tokens_that_the_model_does_not_have(byte_level_model: Path, key: str, sampling: Sampling) -> None:
    assert refusal_of(codec_of(byte_level_model), sampling) == (
        f"sampling.{key}: found token id 512, must be at most 511, the model's last"
    )


def test_a_grammar_that_cannot_be_held_to(byte_level_model: Path) -> None:
    message = refusal_of(codec_of(byte_level_model), Sampling(grammar=Grammar("json_schema", '{"type": "strin"}')))
    assert message.startswith("sampling.json_schema: ")


def test_the_token_that_ends_a_row_is_not_shown(byte_level_model: Path) -> None:
    codec = codec_of(byte_level_model)
    (letter,) = codec._tokenizer.encode("x", add_special_tokens=False)
    tokens = [*codec._tokenizer.encode("hello", add_special_tokens=False), letter]
    (plain,) = requests_of(codec)
    (stopped,) = requests_of(codec, Sampling(stop_token_ids=(letter,)))
    assert codec.completion(plain, tokens) == ("hellox", None)
    assert codec.completion(stopped, tokens) == ("hello", None)


# Each key, a value of its own, and what of the request shows it; the engine reads those that stay in `sampling`, and
# `temperature` goes along so that filters stand beside one that uses them.
KEYS: dict[str, tuple[Any, str]] = {
    "max_tokens": (3, "max_tokens"),
    "min_tokens": (3, "sampling"),
    "temperature": (0.5, "sampling"),
    "top_p": (0.5, "sampling"),
    "top_k": (5, "sampling"),
    "min_p": (0.5, "sampling"),
    "repetition_penalty": (1.5, "sampling"),
    "repetition_context_size": (5, "sampling"),
    "presence_penalty": (0.5, "sampling"),
    "presence_context_size": (5, "sampling"),
    "frequency_penalty": (0.5, "sampling"),
    "frequency_context_size": (5, "sampling"),
    "logit_bias": (((3, 1.0),), "sampling"),
    "stop": (("x",), "stop_matcher"),
    "stop_token_ids": ((3,), "sampling"),
    "ignore_eos": (True, "sampling"),
    "seed": (3, "noise_key"),
    "n": (2, ""),
    "thinking": (True, "tokens"),
    "thinking_budget": (3, "thinking_limit"),
    "grammar": (Grammar("regex", "a+"), "grammar_matcher"),
}
ENGINE = Path(__file__).parents[2] / "batchgen" / "engine"


def test_every_key_has_an_effect(thinking_model: Path) -> None:
    assert list(KEYS) == [field.name for field in fields(Sampling)]
    codec = codec_of(thinking_model)
    source = "\n".join(path.read_text() for path in ENGINE.rglob("*.py"))
    (plain,) = requests_of(codec)
    for key, (value, place) in KEYS.items():
        if not place:
            continue  # The loop asks for so many samples.
        (request,) = requests_of(codec, replace(Sampling(), **{key: value}))
        assert getattr(request, place) != getattr(plain, place), key
        if place == "sampling":
            penalty, _, is_context = key.partition("_context_size")
            named = key if not is_context else f"{penalty}_context"
            assert f".{key}" in source or f'"{key}"' in source or named in source, key
