"""The block of text in which a model thinks before it answers, and how an answer is told from it.

A block stands at the beginning of a completion only, behind nothing but white space; the prompt may have opened it.
Line ends behind it belong to neither part.
"""

import copy
from typing import Literal

OPEN, CLOSE = "<think>", "</think>"

Block = Literal["none", "may_open", "open"]
"""Of a completion: it has no thinking block, it may open one itself, or its prompt has opened one."""


def split_reasoning(text: str, block: Block) -> tuple[str, str | None]:
    """A completion's answer and the text of its thinking block, None where it has no block.

    A block that was never closed is all there is: the answer is then empty.
    """
    head, close, answer = text.partition(CLOSE)
    start = head.lstrip()
    if block == "none" or (block == "may_open" and not start.startswith(OPEN)):
        return text, None
    return (answer.lstrip("\n") if close else ""), start.removeprefix(OPEN).strip()


class AnswerStream:
    """The part of a completion's text that belongs to its answer, as the text comes.

    Text that is so far only the beginning of `<think>` is not told apart yet, and neither are line ends behind
    `</think>`.
    """

    def __init__(self, block: Block) -> None:
        self._part: Literal["head", "thinking", "gap", "answer"] = "answer"
        if block != "none":
            self._part = "thinking" if block == "open" else "head"
        self._held = ""

    def push(self, text: str) -> str:
        """The text that is now known to be of the answer and was not before."""
        text = self._held + text
        if self._part == "head":
            start = text.lstrip()
            if len(start) < len(OPEN) and OPEN.startswith(start):
                self._held = text
                return ""
            self._part = "thinking" if start.startswith(OPEN) else "answer"
        if self._part == "thinking":
            _, close, behind = text.partition(CLOSE)
            if not close:
                self._held = text[1 - len(CLOSE) :]
                return ""
            self._part, text = "gap", behind
        if self._part == "gap":
            text = text.lstrip("\n")
            if text:
                self._part = "answer"
        self._held = ""
        return text

    def last(self, text: str) -> str:
        """What `push` would return, and what is held back besides, if the completion ends with this text."""
        end = copy.copy(self)
        known = end.push(text)
        return end._held if end._part == "head" else known

    def peek(self, text: str) -> str:
        """What `push` would return; nothing is taken."""
        return copy.copy(self).push(text)
