"""The block of text in which a model thinks before it answers, and how an answer is told from it."""

OPEN, CLOSE = "<think>", "</think>"


def ends_open(prompt: str) -> bool:
    """Whether a prompt's text ends with the opening of a block, so that the completion begins inside it."""
    return prompt.rstrip().endswith(OPEN)


def split_reasoning(text: str, is_open: bool) -> tuple[str, str | None]:
    """A completion's answer and the text of its thinking block, None where it has no block.

    `is_open` says that the prompt opens the block. A block that was never closed is all there is: the answer is then
    empty.
    """
    head, close, answer = text.partition(CLOSE)
    if head.lstrip().startswith(OPEN):
        head = head.lstrip().removeprefix(OPEN)
    elif not is_open:
        return text, None
    return (answer.lstrip("\n") if close else ""), head.strip()
