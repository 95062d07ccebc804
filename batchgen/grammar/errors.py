"""What is said about grammars that cannot be used, and where llguidance is missing."""

from importlib.util import find_spec

from batchgen.errors import JobError


class GrammarError(ValueError):
    """A grammar that no completion can be held to; the message says what is wrong and where in the grammar."""


def require_llguidance(key: str) -> None:
    """Raises JobError, naming the job's key that needs it, if llguidance is not installed."""
    if find_spec("llguidance") is None:
        raise JobError(f"{key}: needs llguidance, which is not installed: pip install 'batchgen[grammar]'")
