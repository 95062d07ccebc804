"""What rows remember between passes: attention, recurrent state, the drafter's context; one length per row each."""
