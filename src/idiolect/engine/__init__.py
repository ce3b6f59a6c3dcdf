"""How K clients compute: `loop` (the oracle) and `stacked` (all in one kernel)."""
