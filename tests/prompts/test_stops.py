"""Stop strings against a plain reading of every beginning of a completion: where the row ends, and what is cut off."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from batchgen.engine.row import Row
from batchgen.prompts.encode import Codec
from batchgen.types import Prompt, Request, Sampling
from tests.prompts.builders import decoded_text

PIECES = [
    *("the cat", " sat", " on", " the mat", "hello", " world", " 12 + 34", "\n", "\n\n", " ", "  ", ".", ", ", "aaaa"),
    *("naïve café", "日本語", "🎉", "👩‍👩‍👧", "é", "€", "e\N{COMBINING ACUTE ACCENT}"),
    *("<thi", "<think", "</thin", "<", "</"),
]
OPEN, CLOSE = "<think>", "</think>"
LOST = "\N{REPLACEMENT CHARACTER}"


def codec_of(folder: Path) -> Codec:
    return Codec.load(folder, system=None, chat=None)


def request_of(codec: Codec, **sampling: Any) -> Request:
    requests = codec.requests(Prompt(0, text="hello", sampling=Sampling(**sampling)), [0])
    assert isinstance(requests, list)
    return requests[0]


def tokens_of(codec: Codec, text: str) -> list[int]:
    tokens: list[int] = codec._tokenizer.encode(text, add_special_tokens=False)
    return tokens


@dataclass(frozen=True)
class Reference:
    """The answer in every beginning of a completion, each read as a whole by a codec that knows of no stop string."""

    codec: Codec
    request: Request
    tokens: Sequence[int]

    def answer(self, num_tokens: int) -> str:
        """What is returned for so many tokens if nothing stops."""
        plain = replace(self.request, sampling=replace(self.request.sampling, stop=()))
        return self.codec.completion(plain, self.tokens[:num_tokens])[0]

    def known(self, num_tokens: int) -> str:
        """Of that, what is sure to be of the answer: no character of which bytes are missing, no half `<think>`."""
        answer = self.answer(num_tokens).rstrip(LOST)
        may_open = self.codec._thinks and self.request.sampling.thinking is not True
        is_undecided = may_open and OPEN.startswith(answer.lstrip()) and self.answer(num_tokens) == self.all(num_tokens)
        return "" if is_undecided else answer

    def all(self, num_tokens: int) -> str:
        return decoded_text(self.codec, self.tokens[:num_tokens])

    def starts(self, text: str) -> list[int]:
        """Where stop strings begin that were not complete before there were `min_tokens` tokens."""
        barred = max(len(self.known(count)) for count in range(max(1, self.request.sampling.min_tokens)))
        return [
            start
            for stop in self.request.sampling.stop
            for start in range(len(text))
            if text.startswith(stop, start) and start + len(stop) > barred
        ]

    def end(self) -> int | None:
        """After how many tokens the row ends, None if no stop string ends it."""
        least = max(1, self.request.sampling.min_tokens)
        ends = (k for k in range(least, len(self.tokens) + 1) if self.starts(self.known(k)))
        return next(ends, None)

    def completion(self, num_tokens: int) -> str:
        answer = self.answer(num_tokens)
        if num_tokens < self.request.sampling.min_tokens:
            return answer
        return answer[: min(self.starts(answer.rstrip(LOST)), default=None)]


def end_by_matcher(request: Request, tokens: Sequence[int]) -> int | None:
    matcher = request.stop_matcher
    assert matcher is not None
    return next((count for count, token in enumerate(tokens, 1) if matcher.push(token)), None)


def generated_tokens(codec: Codec, rng: random.Random, thinking: bool | None) -> list[int]:
    """Tokens as the tokenizer makes them of text, and as it does not: characters in bytes, hidden and stray tokens."""
    pieces = rng.choices(PIECES, k=rng.randint(1, 9))
    if codec._thinks and rng.random() < 0.7:
        thought = rng.choices(PIECES, k=rng.randint(0, 3))
        block = [rng.choice(["", "\n"]), *thought, CLOSE, rng.choice(["", "\n", "\n\n"])]
        lead = rng.choice(["", "", " ", "\n"])
        pieces = [*([] if thinking else [lead, OPEN]), *block, *pieces]
    if codec._thinks and rng.random() < 0.1:
        # What is held back to its end: it may yet become `<think>`.
        pieces = [*rng.choices(["\n", "\n\n", " "], k=rng.randint(1, 3)), rng.choice(["", "<", "<thi", "<think"])]
    tokens = []
    kind = rng.choice(["whole", "whole", "pieces", "characters"])
    if kind == "whole":
        pieces = ["".join(pieces)]
    elif kind == "characters":
        pieces = [part for piece in pieces for part in ([piece] if piece in (OPEN, CLOSE) else piece)]
    for piece in pieces:
        tokens += tokens_of(codec, piece) if piece else []
        if rng.random() < 0.05:
            tokens.append(rng.choice(codec._tokenizer.all_special_ids))
        if rng.random() < 0.05:
            tokens.append(rng.randrange(3, codec.vocab_size))
    return [token for token in tokens if token not in codec.eos_token_ids] or tokens_of(codec, "hello")


def generated_stops(text: str, rng: random.Random) -> list[str]:
    """Mostly parts of a text, often overlapping, some that go on otherwise than the text, some from nowhere."""
    stops = []
    for _ in range(rng.choice([1, 1, 2, 3, 5])):
        start = rng.randrange(len(text) + 1)
        stop = text[start : start + rng.choice([1, 1, 2, 3, 5, 8, 20])]
        kind = rng.random()
        if kind < 0.2:
            stop += "§"
        elif kind < 0.3:
            stop = rng.choice(PIECES)
        elif kind < 0.4:
            stop = text[-rng.randint(1, 4) :]
        stops.append(stop)
    return [stop for stop in stops if stop and LOST not in stop] or ["nowhere"]


CASES = 150
MODELS = ["byte_level_model", "sentence_piece_model", "thinking_model", "thinking_text_model"]


@pytest.mark.parametrize("model", MODELS)
def test_rows_end_where_a_plain_reading_ends_them(request: pytest.FixtureRequest, model: str) -> None:
    codec = codec_of(request.getfixturevalue(model))
    rng = random.Random(model)
    num_ended, num_cut = 0, 0
    for case in range(CASES):
        thinking = rng.choice([None, True, False]) if "thinking" in model else None
        tokens = generated_tokens(codec, rng, thinking)
        stops = generated_stops(decoded_text(codec, tokens), rng)
        min_tokens = rng.choice([0, 0, 0, 1, 2, rng.randint(0, len(tokens) + 1)])
        one = request_of(codec, stop=tuple(stops), min_tokens=min_tokens, thinking=thinking)
        reference = Reference(codec, one, tokens)
        end = end_by_matcher(one, tokens)
        told = (case, decoded_text(codec, tokens), stops, min_tokens, thinking)
        assert end == reference.end(), told
        last = len(tokens) if end is None else end
        assert codec.completion(one, tokens[:last])[0] == reference.completion(last), told
        if end is None:
            # The budget ends the row: what was held back is looked at, and says whether the text is cut.
            assert one.stop_matcher is not None
            is_cut = reference.completion(last) != reference.answer(last)
            assert one.stop_matcher.finish() == is_cut, told
            num_cut += is_cut
        num_ended += end is not None
    assert CASES * 0.4 < num_ended < CASES * 0.95
    assert num_cut > 0 or not codec._thinks


@pytest.mark.parametrize(
    ("pieces", "stops", "end", "completion"),
    [
        (["one", " two", " three"], ["wo t"], 3, "one t"),
        (["one", " two", " three"], ["two three", "ne"], 1, "o"),
        (["abcd"], ["cd", "bcd"], 1, "a"),
        (["ab", "cd"], ["d", "bc"], 2, "a"),
        (["ab", "ab", "ac"], ["abac"], 3, "ab"),
        (["one", " tw"], ["two"], None, "one tw"),
        (["one", "</s>"], ["</s>"], None, "one"),
        (["on", "<pad>", "e"], ["one"], 3, ""),
        (["one"], ["one"], 1, ""),
        ([" one"], [" one"], None, "one"),
    ],
)
def test_ends_and_cuts(
    byte_level_model: Path, pieces: list[str], stops: list[str], end: int | None, completion: str
) -> None:
    """Each piece of text stands for all its tokens; the end token is none that stops are looked for in."""
    codec = codec_of(byte_level_model)
    parts = [tokens_of(codec, piece) for piece in pieces]
    one = request_of(codec, stop=tuple(stops))
    tokens = [token for part in parts for token in part]
    found = end_by_matcher(one, [token for token in tokens if token not in codec.eos_token_ids])
    if end is None:
        assert found is None
    else:
        before = sum(map(len, parts[: end - 1]))
        assert found is not None
        assert before < found <= before + len(parts[end - 1])
    assert codec.completion(one, tokens[:found])[0] == completion


def in_bytes(codec: Codec, text: str) -> list[int]:
    return [codec._tokenizer.convert_tokens_to_ids(f"<0x{byte:02X}>") for byte in text.encode()]


def test_a_character_in_bytes_counts_when_its_last_byte_has_come(sentence_piece_model: Path) -> None:
    codec = codec_of(sentence_piece_model)
    tokens = in_bytes(codec, "€€")
    for min_tokens, end in [(0, 3), (3, 3), (4, 6), (6, 6)]:
        one = request_of(codec, stop=("€", LOST), min_tokens=min_tokens)
        assert end_by_matcher(one, tokens) == end
        assert codec.completion(one, tokens[:end])[0] == "€" * (end // 3 - 1)


@pytest.mark.parametrize("model", ["thinking_model", "thinking_text_model"])
@pytest.mark.parametrize("thinking", [None, True, False])
def test_thinking_does_not_stop_a_row(request: pytest.FixtureRequest, model: str, thinking: bool | None) -> None:
    codec = codec_of(request.getfixturevalue(model))
    one = request_of(codec, stop=("cat", "\n"), thinking=thinking)
    opened = "" if thinking else OPEN
    thought = tokens_of(codec, f"{opened}\nthe cat\n{CLOSE}\n\n")
    tokens = thought + tokens_of(codec, "the cat sat")
    end = end_by_matcher(one, tokens)
    assert end is not None
    assert len(thought) < end < len(tokens)
    answer, reasoning = codec.completion(one, tokens[:end])
    assert (answer.strip(), reasoning) == ("the", "the cat")


def test_half_a_think_tag_is_looked_at_once_it_is_none(thinking_text_model: Path) -> None:
    codec = codec_of(thinking_text_model)
    for text, is_stopped in [("<think", False), ("<thinner", True), ("<think>", False)]:
        assert (end_by_matcher(request_of(codec, stop=("<t",)), tokens_of(codec, text)) is not None) == is_stopped


@pytest.mark.parametrize(
    ("text", "stop", "is_stopped"),
    [
        ("\n\n\n", "\n\n", True),
        ("\n\n\n", "x", False),
        ("<t", "<", True),
        (" <thin", "thi", True),
        ("<think>", "<", False),
        ("<think>\n\n", "\n", False),
        ("<think></think>\n\n", "\n", False),
        ("<think></think>\n\na", "\n", False),
    ],
)
def test_a_budget_that_ends_in_what_is_held_back(
    thinking_text_model: Path, text: str, stop: str, is_stopped: bool
) -> None:
    """A stop string that cuts the text is the end that the row reports."""
    codec = codec_of(thinking_text_model)
    tokens = tokens_of(codec, text)
    one = replace(request_of(codec, stop=(stop,)), max_tokens=len(tokens))
    row = Row(one, 0.0, 0.0, codec.eos_token_ids, acceptance_counts=[0] * 99)
    row.begin(tokens[0], 0.0)
    if len(tokens) > 1:
        row.emit(tokens[1:], len(tokens) - 2, len(tokens) - 1)
    assert row.finish_reason == ("stop" if is_stopped else "length")
    whole = replace(one, sampling=replace(one.sampling, stop=()))
    is_cut = codec.completion(one, tokens)[0] != codec.completion(whole, tokens)[0]
    assert is_cut == is_stopped
