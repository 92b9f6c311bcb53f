"""`pagetide bench`: loads any OpenAI-compatible server and reports what its clients see.

What to send (`shapes`, `prompts`, `trace`), what it comes to (`figures`, `slo`, `scrape`, `report`) and how answers are
read (`stream`) are arithmetic. `connection` and `target` speak to the server, `load` keeps the time, `main` joins them.
Imports no torch and no tokenizer: a prompt is token ids, or words whose length the server itself has reported.
Does not belong here: anything that knows how this server works inside.
"""
