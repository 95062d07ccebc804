"""How tokens are chosen from logits: noise, penalties, filters, and the two rules that couple drafts to the target."""
