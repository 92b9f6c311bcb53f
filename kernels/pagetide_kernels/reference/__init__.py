"""What each op means, in plain float32 torch, slow and short: the oracle of the tests."""
