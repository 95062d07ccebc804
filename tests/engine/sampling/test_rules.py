"""Rules that say which token may stand where: ends, least lengths, thinking limits, grammars, stop strings.

Each holds inside a block as it does in plain decoding, for greedy and sampled rows, beside rows that have no rule.
"""

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.utils import load_model

from batchgen.engine.row import Row
from batchgen.engine.sampling.rules import Rules, ThinkingLimits
from batchgen.types import Request, RowKey, Sampling, ThinkingLimit
from tests.engine.builders import prompt_tokens
from tests.engine.sampling.rows import EOS, MAX_TOKENS, decode, decoder
from tests.engine.sampling.scripts import (
    ScriptedGrammar,
    StopAt,
    counts_hold,
    ends_after,
    even_then_odd,
    no_thirds,
)

(END,) = EOS
STOP = 20
CLOSE = 50
NEVER = ((CLOSE, -100.0), (END, -100.0))
SPECULATION = [(None, None), ("v2", 2), ("v2", 8)]
GREEDY, WARM = Sampling(), Sampling(temperature=0.8)


def request(row, sampling=GREEDY, **others):
    tokens = prompt_tokens(row, 1 + row * 7 % 40)
    return Request(RowKey(row, 0), tokens, MAX_TOKENS, sampling, noise_key=row * 0x9E3779B97F4A7C15 % 2**64, **others)


def run(folders, asked, drafter=None, block=None, coupling="shared", kind="hybrid", max_rows=32):
    """Tokens by row number, after a look at every row's counts."""
    folder = None if drafter is None else folders[f"{kind}-{drafter}"]
    done = decode(decoder(folders[kind], folder, max_rows, block, coupling), asked)
    assert all(counts_hold(generation) for generation in done.values())
    return {key.row: generation for key, generation in done.items()}


def texts(done):
    return {row: done[row].tokens for row in sorted(done)}


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_no_end_before_min_tokens(folders, drafter, block, coupling):
    """Rows that want nothing but their end have it right behind their least number of tokens."""
    eager = ((END, 100.0), (STOP, 200.0))  # with the stop token barred the end token would be next
    asked = [
        request(2 * least + warm, replace(sampling, min_tokens=least, logit_bias=eager, stop_token_ids=(STOP,)))
        for least in (0, 1, 2, 5, 9, 13)
        for warm, sampling in enumerate((GREEDY, WARM))
    ]
    done = run(folders, asked, drafter, block, coupling)
    for one in asked:
        tokens = done[one.key.row].tokens
        assert len(tokens) == one.sampling.min_tokens + 1
        assert tokens[-1] == STOP
        assert not {END, STOP} & set(tokens[:-1])
        assert done[one.key.row].finish_reason == "stop"


@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_ends_that_are_ignored_and_ends_that_are_the_rows_own(folders, drafter, block):
    wants_end = ((END, 100.0),)
    asked = [
        request(0, Sampling(logit_bias=wants_end)),
        request(1, Sampling(logit_bias=wants_end, ignore_eos=True)),
        request(2, Sampling(logit_bias=wants_end, ignore_eos=True, stop_token_ids=(END,))),
        request(3, Sampling(logit_bias=((STOP, 100.0),), stop_token_ids=(STOP, 21))),
        request(4, Sampling(logit_bias=((STOP, 100.0),))),
        # Ignored ends are no ends to be barred.
        request(5, Sampling(logit_bias=wants_end, ignore_eos=True, min_tokens=5)),
    ]
    done = run(folders, asked, drafter, block)
    assert texts(done) == {
        0: (END,),
        1: (END,) * MAX_TOKENS,
        2: (END,),
        3: (STOP,),
        4: (STOP,) * MAX_TOKENS,
        5: (END,) * MAX_TOKENS,
    }
    assert [done[row].finish_reason for row in range(6)] == ["stop", "length", "stop", "stop", "length", "length"]


def never_ends(row, sampling, limit=None):
    return request(row, replace(sampling, logit_bias=NEVER), thinking_limit=limit)


BUDGETS = (0, 1, 2, 5, 8, 11)


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_thinking_that_the_prompt_opened_ends_within_its_budget(folders, drafter, block, coupling):
    """The close token stands once, right behind the budget, though its bias says never; before it nothing changes."""
    samplings = (GREEDY, WARM)
    free = [never_ends(2 * n + warm, s) for n in range(len(BUDGETS)) for warm, s in enumerate(samplings)]
    limited = [
        replace(one, thinking_limit=ThinkingLimit(BUDGETS[one.key.row // 2], None, CLOSE, is_open=True)) for one in free
    ]
    done, plain = run(folders, limited, drafter, block, coupling), run(folders, limited)
    without = run(folders, free)
    for row, text in texts(done).items():
        budget = BUDGETS[row // 2]
        assert [place for place, token in enumerate(text) if token == CLOSE] == [budget]
        assert len(text) == MAX_TOKENS
        if coupling == "shared" or row % 2 == 0:
            assert text == plain[row].tokens
            assert text[:budget] == without[row].tokens[:budget]
    if drafter is not None:
        assert sum(generation.accepted_tokens for generation in done.values()) > 40


@pytest.fixture(scope="module")
def unlimited(folders):
    """Rows that may think for ever, and their texts."""
    free = [never_ends(row, sampling) for row, sampling in enumerate((GREEDY, WARM) * 4)]
    return free, texts(run(folders, free))


@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_thinking_that_the_first_token_opens_does_not_count_it(folders, unlimited, drafter, block):
    free, without = unlimited
    limited, expected_places = [], {}
    for one, budget in zip(free, BUDGETS, strict=False):
        first = without[one.key.row][0]
        for variant, open_token in enumerate((first, (first + 1) % 90, None)):
            key = RowKey(10 * one.key.row + variant, 0)
            limit = ThinkingLimit(budget, open_token, CLOSE, is_open=False)
            limited.append(replace(one, key=key, thinking_limit=limit))
            expected_places[key.row] = [budget + 1] if variant == 0 else []
    done = texts(run(folders, limited, drafter, block))
    for row, text in done.items():
        assert [place for place, token in enumerate(text) if token == CLOSE] == expected_places[row]
        if not expected_places[row]:
            assert text == without[row // 10]


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_thinking_may_begin_behind_tokens_that_do_not_matter(folders, drafter, block, coupling):
    """A row's own text serves: its first tokens as those that may lead, the next new one as the one that opens."""
    free = [never_ends(row, sampling) for row, sampling in enumerate((GREEDY, WARM) * 4)]
    without = texts(run(folders, free, drafter, block, coupling))
    limited, cases = [], {}
    for one in free:
        text = without[one.key.row]
        openings = [place for place in range(1, 10) if text[place] not in text[:place]]
        for place, budget in ((place, budget) for place in openings for budget in (0, 1, 3)):
            key = RowKey(len(limited), 0)
            lead = frozenset(text[:place])
            limit = ThinkingLimit(budget, text[place], CLOSE, is_open=False, lead_tokens=lead)
            # Without its last lead token the same row opens no block.
            missing = replace(limit, lead_tokens=lead - {text[place - 1]})
            limited.append(replace(one, key=key, thinking_limit=limit if len(limited) % 4 else missing))
            cases[key.row] = (text, place + 1 + budget if key.row % 4 else None)
    done = texts(run(folders, limited, drafter, block, coupling, max_rows=64))
    assert len(done) >= 60
    for row, (text, end) in cases.items():
        assert [place for place, token in enumerate(done[row]) if token == CLOSE] == ([] if end is None else [end])
        if coupling == "shared":
            assert done[row][:end] == text[:end]


@pytest.mark.parametrize("is_open", [True, False])
@pytest.mark.parametrize("max_tokens", [2**30, 2**31 - 2, 2**31 - 1])
def test_a_thinking_budget_of_any_size_spoils_no_batch(folders, max_tokens, is_open):
    free = [never_ends(row, sampling) for row, sampling in enumerate((GREEDY, WARM))]
    without = texts(run(folders, free, "v2", 8))
    limits = [ThinkingLimit(max_tokens, without[one.key.row][0], CLOSE, is_open) for one in free]
    asked = [replace(one, thinking_limit=limit) for one, limit in zip(free, limits, strict=True)]
    assert texts(run(folders, asked, "v2", 8)) == without


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_the_token_that_ends_thinking_stands_before_any_least_number(folders, drafter, block, coupling):
    """It ends the row here, too soon; what else could stand there is barred by the budget."""
    limit = ThinkingLimit(3, None, CLOSE, is_open=True)
    asked = [
        request(row, replace(sampling, min_tokens=9, stop_token_ids=(CLOSE,)), thinking_limit=limit)
        for row, sampling in enumerate((GREEDY, WARM))
    ]
    for generation in run(folders, asked, drafter, block, coupling).values():
        assert (len(generation.tokens), generation.tokens[-1], generation.finish_reason) == (4, CLOSE, "stop")
        assert generation.logprobs[-1] == 0


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_ends_stand_where_nothing_else_is_there(folders, drafter, block, coupling):
    """Under min_tokens with a stop token for every one, and beside a grammar that wants the end."""
    every = Sampling(min_tokens=5, stop_token_ids=tuple(range(96)))
    asked = [
        request(0, every),
        request(1, replace(every, temperature=0.8)),
        request(2, Sampling(min_tokens=9), grammar_matcher=ScriptedGrammar(ends_after(4, END))),
    ]
    done = run(folders, asked, drafter, block, coupling)
    assert [len(done[row].tokens) for row in range(3)] == [1, 1, 5]
    assert done[2].tokens[-1] == END
    for generation in done.values():
        assert np.isfinite(generation.logprobs).all()


@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_thinking_that_closes_by_itself_is_left_alone(folders, unlimited, drafter, block):
    """Tokens of a row's own text serve as its close token: a budget up to there changes nothing, a smaller one does."""
    free, without = unlimited
    limited, cases = [], {}
    for one in free:
        text = without[one.key.row]
        new = [place for place, token in enumerate(text) if place and token not in text[:place]]
        for place in new[:3]:
            for spare in (0, 1, 4, -1):
                key = RowKey(len(limited), 0)
                limit = ThinkingLimit(place + spare, None, text[place], is_open=True)
                limited.append(replace(one, key=key, thinking_limit=limit))
                cases[key.row] = (text, place, spare)
    done = texts(run(folders, limited, drafter, block))
    assert len(done) >= 60
    for row, (text, place, spare) in cases.items():
        if spare >= 0:
            assert done[row] == text
        else:
            assert done[row][: place + 1] != text[: place + 1]
            assert done[row][place - 1] == text[place]


def test_a_close_token_among_the_drafts_frees_the_positions_behind_it():
    limit = ThinkingLimit(2, None, CLOSE, is_open=True)
    row = Row(replace(request(0), thinking_limit=limit), 0.0, 0.0, EOS, acceptance_counts=[0] * 8)
    row.tokens = [7]
    limits = ThinkingLimits.of([row])
    logits, tokens = mx.zeros((1, 5, 96)), mx.array([[7, 8, 9, CLOSE, 11]])
    left = np.array(limits.apply(logits, tokens, mx.arange(1, 6)[None]) > -mx.inf).sum(axis=-1)
    assert left.tolist() == [[96, 1, 1, 96, 96]]
    # A row that took the close token never has to close again; one that rejected it does.
    positions = mx.arange(1, 6)[None]
    limits.advance(tokens, mx.array([3]), positions)
    assert limits.positions.tolist() == [2]
    limits.advance(tokens, mx.array([4]), positions)
    assert limits.positions.tolist() == [2**31 - 1]


SCRIPTS = (even_then_odd(7), no_thirds, ends_after(9, END), even_then_odd(2))


def grammar_rows(scripts=SCRIPTS):
    """Every second row has a grammar; greedy and warm rows of each kind."""
    asked = []
    for row in range(4 * len(scripts)):
        sampling = replace((GREEDY, WARM)[row // 2 % 2], ignore_eos=row % 2 == 1)
        matcher = ScriptedGrammar(scripts[row // 4]) if row % 2 == 0 else None
        asked.append(request(row, sampling, grammar_matcher=matcher))
    return asked


def masked_by_mlx_lm(folder, one):
    """Greedy tokens of mlx-lm with the grammar's mask as a processor."""
    model, _ = load_model(folder)
    num_prompt = len(one.tokens)

    def mask(tokens, logits):
        allowed = one.grammar_matcher.script(tokens[num_prompt:].tolist())
        return mx.where(mx.array(allowed), logits, -mx.inf)

    made: list[int] = []
    for token, _ in generate_step(mx.array(one.tokens), model, max_tokens=MAX_TOKENS, logits_processors=[mask]):
        made.append(int(token))
        if made[-1] in EOS:
            break
    return tuple(made)


@pytest.fixture(scope="module")
def masked(folders):
    """What greedy rows with a grammar must be, and what rows without one are where nobody has any."""
    greedy = [one for one in grammar_rows() if one.grammar_matcher is not None and one.sampling.temperature == 0]
    free = [one for one in grammar_rows() if one.grammar_matcher is None]
    return {one.key.row: masked_by_mlx_lm(folders["hybrid"], one) for one in greedy} | texts(run(folders, free))


@pytest.fixture(scope="module")
def grammar_alone(folders):
    """The same rows one at a time and without a drafter."""
    return texts(run(folders, grammar_rows(), max_rows=1))


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize(("drafter", "block"), SPECULATION)
def test_grammars_hold_and_see_what_is_emitted(folders, masked, grammar_alone, drafter, block, coupling):
    asked = grammar_rows()
    done = run(folders, asked, drafter, block, coupling, max_rows=8)
    for one in asked:
        row, matcher, text = one.key.row, one.grammar_matcher, done[one.key.row].tokens
        if row in masked and (coupling == "shared" or one.sampling.temperature == 0):
            assert text == masked[row]
        if coupling == "shared":
            assert text == grammar_alone[row]
        if matcher is None:
            continue
        assert matcher.allows(text)
        # All passes but the last, whose tokens nobody needs to know any more.
        assert tuple(matcher.taken) == text[: len(matcher.taken)]
        assert 1 <= len(text) - len(matcher.taken) <= (block or 1)
    refused = sum(one.grammar_matcher.num_refused for one in asked if one.grammar_matcher)
    accepted = sum(done[one.key.row].accepted_tokens for one in asked if one.grammar_matcher)
    if drafter is None:
        assert (refused, accepted) == (0, 0)
    else:
        assert refused >= 5
        assert accepted > 20
    assert [done[row].finish_reason for row in (8, 10)] == ["stop", "stop"]


def test_the_texts_that_grammars_make_are_not_the_free_ones(folders, masked):
    free = texts(run(folders, [replace(one, grammar_matcher=None) for one in grammar_rows()]))
    assert [masked[row] != free[row] for row in (0, 4, 8, 12)] == [True] * 4
    assert len({masked[row] for row in (0, 4, 8, 12)}) == 4


@pytest.mark.parametrize("vocab_size", [96, 70, 33, 32])
def test_masks_are_read_bit_by_bit(vocab_size):
    """Token t is bit t % 32 of word t // 32. Rows without a grammar are free, as is what follows a refused draft."""

    class Matcher:
        def fill(self, drafts, masks):
            allowed = np.random.default_rng(vocab_size).random((len(drafts) + 1, 32 * masks.shape[1])) < 0.5
            for place in range(2):
                for token in range(vocab_size):
                    bit = np.uint32(1 << token % 32)
                    masks[place, token // 32] &= ~bit
                    masks[place, token // 32] |= bit * np.uint32(allowed[place, token])
            self.allowed = allowed[:, :vocab_size]
            return 1

        def advance(self, tokens):
            raise AssertionError

    matcher = Matcher()
    rows = [
        Row(one, 0.0, 0.0, EOS, acceptance_counts=[0] * 8)
        for one in (request(0), request(1, grammar_matcher=matcher), request(2))
    ]
    masks = np.array(Rules(rows).grammar_masks([[1, 2]] * 3, vocab_size))
    assert masks.shape == (3, 3, vocab_size)
    np.testing.assert_array_equal(masks[1, :2], matcher.allowed[:2])
    assert masks[0].all()
    assert masks[2].all()
    assert masks[1, 2].all()
    assert Rules([rows[0]]).grammar_masks([[1]], vocab_size) is None


@pytest.mark.parametrize("coupling", ["shared", "rejection"])
@pytest.mark.parametrize(("drafter", "block"), [*SPECULATION, ("v2", 4)])
def test_stop_strings_end_a_row_wherever_they_are_complete(folders, drafter, block, coupling):
    """Runs of one to three tokens out of each row's own text, at places all over and across the edges of blocks."""
    free = [request(row, replace(sampling, ignore_eos=True)) for row, sampling in enumerate((GREEDY, WARM) * 4)]
    without = texts(run(folders, free, drafter, block, coupling))
    asked = []
    for one in free:
        for place, width in ((0, 1), (3, 2), (6, 3), (11, 2)):
            matcher = StopAt(without[one.key.row][place : place + width])
            asked.append(replace(one, key=RowKey(len(asked), 0), stop_matcher=matcher))
    done = run(folders, asked, drafter, block, coupling)
    ends = []
    for one in asked:
        text, width, generation = without[one.key.row // 4], len(one.stop_matcher.wanted), done[one.key.row]
        end = next(n for n in range(width, MAX_TOKENS + 1) if text[n - width : n] == one.stop_matcher.wanted)
        assert generation.tokens == tuple(one.stop_matcher.pushed) == text[:end]
        assert generation.finish_reason == "stop"
        assert len(generation.logprobs) == end
        ends.append(end)
    assert sum(end < MAX_TOKENS for end in ends) == len(ends)
    assert len(set(ends)) >= 5


@pytest.mark.parametrize("num_accepted", range(8))
@pytest.mark.parametrize("end", range(8))
def test_what_a_stop_cuts_off_counts_nowhere(end, num_accepted):
    """A block of 8: the stop string is complete with token number `end` of the run. The run's last token is the pass's
    own, and drafts behind it were never asked for."""
    row = Row(replace(request(0), stop_matcher=StopAt((60 + end,))), 0.0, 0.0, EOS, acceptance_counts=[0] * 8)
    row.begin(1, 0.0, [-0.5])
    row.emit(
        [*range(60, 60 + num_accepted), 60 + num_accepted, *[99] * (7 - num_accepted)], num_accepted, 8, [-1.0] * 8
    )
    is_stopped = end <= num_accepted
    kept = end + 1 if is_stopped else num_accepted + 1
    assert row.tokens == [1, *range(60, 60 + kept)]
    assert row.finish_reason == ("stop" if is_stopped else None)
    assert (row.accepted_tokens, row.verify_passes, len(row.logprobs)) == (kept - 1, 1, kept + 1)
    assert row.acceptance_counts[kept - 1] == 1
    assert row.drafted_tokens == (min(7, end + (end == num_accepted)) if is_stopped else 7)
