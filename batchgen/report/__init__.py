"""What is said of a run when it is over or asked about; reads what the run left, changes nothing."""
