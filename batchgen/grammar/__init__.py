"""What a completion must be: JSON of a schema, a regular expression, one of some texts. Needs the extra `grammar`.

Turns a grammar into masks over the vocabulary. Importing it, and calling `require_llguidance`, works without
llguidance; everything else here needs it. Knows no model, no array on a device, and no job.
"""

from batchgen.grammar.check import check_grammar
from batchgen.grammar.errors import GrammarError, require_llguidance
from batchgen.grammar.factory import GrammarFactory
from batchgen.grammar.matcher import TokenMatcher

__all__ = ["GrammarError", "GrammarFactory", "TokenMatcher", "check_grammar", "require_llguidance"]
