"""Text to tokens and back: tokenizer loading, chat templates, incremental detokenization, stop strings. No torch."""
