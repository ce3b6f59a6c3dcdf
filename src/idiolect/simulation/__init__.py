"""One method on one federation, round by round, on one machine."""
