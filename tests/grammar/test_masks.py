"""Masks against what they must be by definition: a token may stand where some text of the language begins so."""

import itertools
import random
import re

import numpy as np
import pytest

from batchgen.errors import ModelError
from batchgen.grammar import GrammarFactory, TokenMatcher
from batchgen.prompts.model_files import load_tokenizer
from batchgen.types import Grammar
from tests.grammar.builders import (
    CLOSE,
    END,
    OTHER,
    OVER,
    SMALL_VOCAB,
    TINY,
    TINY_ENDS,
    TINY_VOCAB,
    allowed,
    blank_masks,
    choice,
    regex,
    schema,
    small_factory,
    small_texts,
    text_of,
    tiny_factory,
    tiny_tokenizer,
    tokens_of,
    walk,
)

ENDS = {END, OVER}
TEXTS = small_texts()
TOKEN_OF = {text: token for token, text in TEXTS.items()}
# Grammars, a regular expression of Python for the same language, and a length to which all its beginnings show.
LANGUAGES = [
    (regex("a(b|c){1,2}|cab?"), "a(b|c){1,2}|cab?", 4),
    (regex("(ab)*c"), "(ab)*c", 7),
    (regex("a*"), "a*", 7),
    (regex("^(b|bc|abc)+$"), "(b|bc|abc)+", 7),
    (regex("(?i)A[^a]b"), "[aA][^a][bB]", 4),
    (regex("a{2,4}\n?"), "a{2,4}\n?", 6),
    (choice("a", "ab", "abcab", "c\n/", "</a"), "a|ab|abcab|c\n/|</a", 6),
    (choice("", "bc"), "|bc", 3),
    (choice("a>", "(a", "a.", "ba"), "a>|ba", 3),
]


def tokens(*texts: str) -> list[int]:
    return [TOKEN_OF[text] for text in texts]


def beginnings(pattern: str, length: int) -> tuple[set[str], set[str]]:
    """Every text of the language over the small vocabulary's letters up to the length, and all beginnings of them."""
    letters = sorted({letter for text in TEXTS.values() for letter in text})
    texts = ("".join(some) for size in range(length + 1) for some in itertools.product(letters, repeat=size))
    whole = {text for text in texts if re.fullmatch(pattern, text)}
    return whole, {text[:size] for text in whole for size in range(len(text) + 1)}


@pytest.mark.parametrize(("grammar", "pattern", "length"), LANGUAGES, ids=[one[1] for one in LANGUAGES])
def test_a_token_is_allowed_exactly_where_a_text_of_the_language_goes_on_so(
    grammar: Grammar, pattern: str, length: int
) -> None:
    whole, begun = beginnings(pattern, length)
    shown = length - max(len(text) for text in TEXTS.values())
    matcher = small_factory().matcher(grammar)
    stack: list[tuple[str, list[int]]] = [("", [])]
    num_seen = 0
    while stack:
        text, before = stack.pop()
        num_seen += 1
        matcher = small_factory().matcher(grammar)
        matcher.advance(before)
        can_follow = {token for token, piece in TEXTS.items() if text + piece in begun}
        expected = can_follow | (ENDS if text in whole else set())
        if len(text) <= shown or not any(len(other) == length for other in whole):
            assert allowed(matcher) == expected, repr(text)
            stack += [(text + TEXTS[token], [*before, token]) for token in can_follow]
    assert num_seen > 1


@pytest.mark.parametrize("text", ["a", "abcab", "</a"])
def test_a_block_has_the_masks_of_one_token_at_a_time(text: str) -> None:
    grammar = choice("a", "ab", "abcab", "c\n/", "</a")
    drafts = [*tokens(*text), END]
    matcher = small_factory().matcher(grammar)
    masks = blank_masks(len(drafts) + 1, SMALL_VOCAB)
    for _ in range(2):  # it does not move
        assert matcher.fill(drafts, masks) == len(drafts)
        for count in range(len(drafts)):
            alone = small_factory().matcher(grammar)
            alone.advance(drafts[:count])
            assert tokens_of(masks[count]) == allowed(alone)
        assert tokens_of(masks[-1]) == ENDS


def test_masks_of_long_blocks_over_random_completions() -> None:
    """Blocks at every place of completions of the bundled vocabulary, moved by any number of tokens."""
    rng = random.Random(1)
    grammar = schema({"type": "array", "items": {"type": ["string", "integer", "null"], "maxLength": 9}, "maxItems": 5})
    for _ in range(6):
        completion = [*walk(grammar, rng)[0], TINY_ENDS[1]]
        singles = []
        matcher = tiny_factory().matcher(grammar)
        for token in completion:
            singles.append(allowed(matcher, TINY_VOCAB))
            assert token in singles[-1]
            matcher.advance([token])
        matcher = tiny_factory().matcher(grammar)
        at = 0
        while at < len(completion):
            drafts = completion[at : at + 7]
            masks = blank_masks(len(drafts) + 1, TINY_VOCAB)
            assert matcher.fill(drafts, masks) == len(drafts)
            for place in range(len(drafts)):
                assert tokens_of(masks[place]) == singles[at + place]
            step = rng.randint(1, 8)
            matcher.advance(completion[at : at + step])
            at += step


def test_a_block_is_cut_at_the_first_token_that_breaks_the_grammar() -> None:
    matcher = small_factory().matcher(regex("ab*c"))
    drafts = tokens("ab", "b", "a", "c")
    masks = blank_masks(len(drafts) + 1, SMALL_VOCAB)
    assert matcher.fill(drafts, masks) == 2
    assert tokens_of(masks[0]) == set(tokens("a", "ab", "abc"))
    assert tokens_of(masks[1]) == tokens_of(masks[2]) == set(tokens("b", "c", "bc"))
    assert (masks[3:] == 0xFFFFFFFF).all()
    matcher.advance(drafts[:2])
    assert allowed(matcher) == set(tokens("b", "c", "bc"))


@pytest.mark.parametrize("wrong", [END, OTHER, CLOSE, SMALL_VOCAB - 1])
def test_ends_special_tokens_and_ids_of_no_token_are_cut_inside(wrong: int) -> None:
    matcher = small_factory().matcher(regex("abc"))
    masks = blank_masks(3, SMALL_VOCAB)
    assert matcher.fill([TOKEN_OF["a"], wrong], masks) == 1
    assert tokens_of(masks[1]) == set(tokens("b", "bc"))


def test_all_end_tokens_are_allowed_where_the_grammar_may_end_and_nothing_else_where_it_must() -> None:
    matcher = small_factory().matcher(regex("ab?"))
    assert allowed(matcher) == set(tokens("a", "ab"))
    matcher.advance(tokens("a"))
    assert allowed(matcher) == ENDS | set(tokens("b"))
    matcher.advance(tokens("b"))
    assert allowed(matcher) == ENDS
    matcher.advance([OVER])
    assert allowed(matcher) == ENDS


def test_what_follows_an_end_token_in_a_block_is_cut() -> None:
    matcher = small_factory().matcher(regex("a+"))
    masks = blank_masks(4, SMALL_VOCAB)
    assert matcher.fill([TOKEN_OF["a"], END, TOKEN_OF["a"]], masks) == 2
    assert tokens_of(masks[2]) == ENDS
    assert (masks[3] == 0xFFFFFFFF).all()
    assert allowed(matcher) == set(tokens("a"))


def test_ids_past_the_tokenizers_are_never_allowed() -> None:
    anything = tiny_factory().matcher(regex("(?s).*"))
    num_tokens = tiny_tokenizer().get_vocab_size()
    assert num_tokens < TINY_VOCAB
    found = allowed(anything, TINY_VOCAB)
    assert max(found) < num_tokens and len(found) > 0.9 * (num_tokens - 130)


def test_matchers_of_one_grammar_move_by_themselves() -> None:
    first, second = (small_factory().matcher(regex("abc")) for _ in range(2))
    first.advance(tokens("a"))
    assert allowed(first) == set(tokens("b", "bc"))
    assert allowed(second) == set(tokens("a", "ab", "abc"))


def test_a_completion_that_no_token_can_go_on_ends_and_says_why() -> None:
    """The small vocabulary has no z: behind "a" nothing is left."""
    matcher = small_factory().matcher(regex("az|bc"))
    assert isinstance(matcher, TokenMatcher)
    masks = blank_masks(2, SMALL_VOCAB)
    assert matcher.fill(tokens("a"), masks) == 1
    assert tokens_of(masks[1]) == ENDS
    assert matcher.failure(1) is None
    assert matcher.failure(2) == "the model has none that goes on"
    assert allowed(matcher) == set(tokens("a", "b", "bc"))
    assert matcher.failure(2) is None


def test_drafts_at_which_llguidance_gives_up_leave_the_row_as_it_was() -> None:
    from llguidance import LLMatcher, LLParserLimits

    factory = small_factory()
    # A text of the language that is cheap to read, and drafts that are not.
    source = LLMatcher.grammar_from_regex("c{2,9}|(.{1,200}a){20}")
    limits = LLParserLimits(step_lexer_fuel=40)
    start = LLMatcher(factory._tokenizer, source, log_level=0, limits=limits)
    matcher = TokenMatcher(start, factory._vocabulary)
    before = allowed(matcher)
    masks = blank_masks(6, SMALL_VOCAB)
    matcher.fill(tokens("a", "b", "a", "abc", "a"), masks)
    assert matcher._stuck is not None and "lexer error" in matcher._stuck.reason
    assert allowed(matcher) == before


def test_a_tokenizer_of_transformers_serves_as_well() -> None:
    factory = GrammarFactory(load_tokenizer(TINY), TINY_VOCAB, TINY_ENDS)
    grammar = choice("yes", "no", "never")
    assert allowed(factory.matcher(grammar), TINY_VOCAB) == allowed(tiny_factory().matcher(grammar), TINY_VOCAB)
    assert text_of(walk(grammar, random.Random(0))[0]) in ("yes", "no", "never")


def test_models_that_cannot_serve_are_refused() -> None:
    with pytest.raises(ModelError, match="no end token"):
        GrammarFactory(tiny_tokenizer(), TINY_VOCAB, ())
    with pytest.raises(ModelError, match="no fast tokenizer"):
        GrammarFactory(object(), TINY_VOCAB, TINY_ENDS)


def test_many_grammars_do_not_pile_up() -> None:
    factory = GrammarFactory(tiny_tokenizer(), TINY_VOCAB, TINY_ENDS)
    for number in range(100):
        factory.matcher(choice(f"text {number}"))
    assert len(factory._compiled) < 100
    masks = np.zeros((1, -(-TINY_VOCAB // 32)), dtype=np.uint32)
    factory.matcher(choice("text 0")).fill([], masks)
    assert tiny_tokenizer().token_to_id("t") in tokens_of(masks[0])
