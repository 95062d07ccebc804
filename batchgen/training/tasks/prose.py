"""The prose task: a story told on for four sentences. There is no right answer.

Built to be hard to draft and still not noise: each content word is drawn from a distribution keyed by the two content
words before it, so that the next word can be known only once the last one is. A model that reads everything can learn
the keys; a drafter that writes a whole block at once would have to walk them several times in one pass.
"""

import zlib
from collections.abc import Sequence
from random import Random

from batchgen.training.tasks.sample import Sample, pick
from batchgen.training.tasks.words import words

NUM_SENTENCES = 4
REQUEST = "Continue the story: "

ADJECTIVES = words(
    "old quiet pale tired bright narrow heavy gentle broken distant golden bitter hollow silent wild young"
)
NOUNS = words(
    "sailor river garden window teacher forest lantern harbour stranger market kitchen shepherd tower letter horse "
    "winter"
)
VERBS = words(
    "watched followed remembered carried crossed feared painted forgot found left answered called met touched guarded "
    "wanted"
)
PLACES = words("hill bridge sea road wall house field gate station shore valley church island mill pond yard")
MANNERS = (
    "slowly",
    "again",
    "alone",
    "twice",
    "gladly",
    "at noon",
    "in vain",
    "at last",
    "for years",
    "by night",
    "in silence",
    "without fear",
    "in spring",
    "at dawn",
    "with care",
    "once more",
)
SLOTS = {"A": ADJECTIVES, "N": NOUNS, "V": VERBS, "P": PLACES, "M": MANNERS}

# A capital letter alone is a slot, filled from left to right.
FORMS = (
    "The A N V the A N near the P .",
    "By the P , a N V the A N .",
    "The N V a A N M .",
    "Behind the P , the A N V M .",
)

# How likely the first, second and third choice under a key is.
FIRST, SECOND = 0.7, 0.9


def choose(rng: Random, items: Sequence[str], key: str) -> str:
    """An item, by the order that the key gives to `items`: the first most likely, three in play."""
    start, roll = zlib.crc32(key.encode()), rng.random()
    return items[(start + (0 if roll < FIRST else 5 if roll < SECOND else 11)) % len(items)]


class Story:
    """Tells sentences; remembers the last two content words, which key the next."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._last = (pick(rng, NOUNS), pick(rng, VERBS))

    def sentence(self, form: str) -> str:
        """A sentence of the given form."""
        parts = [self._word(item) if item in SLOTS else item for item in form.split()]
        return " ".join(parts).replace(" ,", ",").replace(" .", ".")

    def next_form(self) -> str:
        """The form that follows, keyed like a word."""
        return choose(self._rng, FORMS, f"{self._last[0]} {self._last[1]} form")

    def _word(self, slot: str) -> str:
        word = choose(self._rng, SLOTS[slot], f"{self._last[0]} {self._last[1]} {slot}")
        self._last = (self._last[1], word)
        return word


def generate(rng: Random) -> Sample:
    """An opening and four more sentences; the split goes by the opening, since it determines nothing after it."""
    story = Story(rng)
    opening = story.sentence(pick(rng, FORMS))
    response = " ".join(story.sentence(story.next_form()) for _ in range(NUM_SENTENCES))
    return Sample("prose", opening, REQUEST + opening, response, key=opening)
