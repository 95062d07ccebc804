"""Makes the bundled pair: tasks, tokenizer, training of target and drafter. Nothing else imports it."""
