"""Text to tokens and back: tokenizer loading, chat templates, incremental detokenization, stop strings. No torch.

Does not belong here: HTTP and its fields (`api/`), and which token is next (`engine/sampling`).
"""
