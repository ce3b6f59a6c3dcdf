"""The language a method is written in: trees, networks, randomness, the contract."""
