"""Completions that think first: the grammar begins behind the text that ends their thinking."""

import pytest

from batchgen.types import Grammar, GrammarMatcher
from tests.grammar.builders import (
    CLOSE,
    END,
    OTHER,
    OVER,
    PIECES,
    SMALL_VOCAB,
    SPECIAL,
    allowed,
    blank_masks,
    choice,
    regex,
    small_factory,
    small_texts,
    tokens_of,
)

TOKEN_OF = {text: token for token, text in small_texts().items()}
ENDS = {END, OVER}
A_OR_BC = choice("a", "bc")
ANY = set(range(len(PIECES) + len(SPECIAL))) - ENDS


def tokens(*texts: str) -> list[int]:
    return [TOKEN_OF[text] for text in texts]


def after(*before: int, grammar: Grammar = A_OR_BC, text: str = "</a>") -> GrammarMatcher:
    matcher = small_factory().matcher(grammar, after=text)
    matcher.advance(list(before))
    return matcher


def test_thinking_may_be_anything_but_an_end() -> None:
    assert allowed(after()) == ANY
    assert allowed(after(*tokens("a", "\n\n\n", "</"), OTHER, CLOSE)) == ANY


@pytest.mark.parametrize(
    "marker",
    [("<", "/", "a", ">"), ("</", "a>"), ("c", "<", "</", "a", ">"), ("</", "<", "/", "a>"), ("a", "</", "a>")],
)
def test_the_grammar_begins_behind_the_marker_however_it_is_cut(marker: tuple[str, ...]) -> None:
    before = tokens(*marker)
    assert allowed(after(*before[:-1])) >= {before[-1]}
    assert allowed(after(*before)) == set(tokens("a", "b", "bc", "\n", "\n\n"))
    assert allowed(after(*before, *tokens("b"))) == set(tokens("c"))
    assert allowed(after(*before, *tokens("bc"))) == ENDS


def test_a_marker_may_be_a_special_token() -> None:
    assert allowed(after(CLOSE, text="</t>")) == set(tokens("a", "b", "bc", "\n", "\n\n"))


def test_markers_that_begin_again_inside_themselves() -> None:
    """Behind "ab" of "abab" the text "cab" has begun nothing new, and "ab" completes it."""
    assert allowed(after(*tokens("a", "b", "a"), text="abab")) == ANY - set(tokens("bc"))
    assert allowed(after(*tokens("ab", "a", "a", "b"), text="abab")) == ANY - set(tokens("abc"))
    assert allowed(after(*tokens("ab", "ab"), text="abab")) == set(tokens("a", "b", "bc", "\n", "\n\n"))


def test_a_token_in_which_the_marker_ends_and_text_goes_on_is_not_allowed() -> None:
    assert allowed(after(*tokens("</"), text="</a")) == ANY - set(tokens("a>", "ab", "abc"))


def test_a_marker_that_is_a_token_is_not_spelled_out() -> None:
    assert allowed(after(text="a>")) == ANY
    assert allowed(after(*tokens("a"), text="a>")) == ANY - set(tokens(">", ">a"))
    assert allowed(after(text="b")) == ANY - set(tokens("ab", "bc", "abc"))
    assert allowed(after(*tokens("b"), text="b")) == set(tokens("a", "b", "bc", "\n", "\n\n"))


def test_at_most_two_line_ends_stand_before_the_grammar() -> None:
    before = tokens("</", "a>")
    assert allowed(after(*before, *tokens("\n"))) == set(tokens("a", "b", "bc", "\n"))
    assert allowed(after(*before, *tokens("\n\n"))) == set(tokens("a", "b", "bc"))
    assert allowed(after(*before, *tokens("\n", "\n"))) == set(tokens("a", "b", "bc"))
    assert allowed(after(*before, *tokens("\n", "a"))) == ENDS


def test_a_line_end_that_the_grammar_begins_with_is_its_own() -> None:
    before = tokens("</", "a>")
    matcher = after(*before, grammar=regex("\n?a"))
    assert allowed(matcher) == set(tokens("a", "\n", "\n\n", "\na"))
    matcher.advance(tokens("\n"))
    assert allowed(matcher) == set(tokens("a"))


def test_a_block_may_run_from_thinking_into_the_grammar_and_past_its_end() -> None:
    drafts = [*tokens("c", "</", "a", ">", "\n", "b", "c"), OVER]
    matcher = after()
    masks = blank_masks(len(drafts) + 1, SMALL_VOCAB)
    for _ in range(2):
        assert matcher.fill(drafts, masks) == len(drafts)
        for count in range(len(drafts) + 1):
            assert tokens_of(masks[count]) == allowed(after(*drafts[:count]))


def test_a_block_is_cut_where_thinking_would_end_the_row() -> None:
    masks = blank_masks(4, SMALL_VOCAB)
    assert after().fill([TOKEN_OF["a"], END, TOKEN_OF["a"]], masks) == 1
    assert (masks[2:] == 0xFFFFFFFF).all()


def test_models_that_choose_whether_to_think() -> None:
    """With an opening token, a completion that begins otherwise is held to the grammar at once."""

    def begun(*before: int) -> GrammarMatcher:
        matcher = small_factory().matcher(choice("a", "bc"), after="</a>", open_token=OTHER)
        matcher.advance(list(before))
        return matcher

    assert allowed(begun()) == {OTHER, *tokens("a", "b", "bc")}
    assert allowed(begun(*tokens("b"))) == set(tokens("c"))
    assert allowed(begun(OTHER)) == ANY
    assert allowed(begun(OTHER, *tokens("</", "a>", "a"))) == ENDS
    masks = blank_masks(3, SMALL_VOCAB)
    assert begun().fill([OTHER, TOKEN_OF["c"]], masks) == 2
    assert begun().fill([TOKEN_OF["bc"], OTHER], masks) == 1
