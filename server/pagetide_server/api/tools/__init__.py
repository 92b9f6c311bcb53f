"""Tool calls as models write them: one file a format, each a parser that reads the text in pieces.

A parser's parts add up to the same content and calls however the text was cut.
Does not belong here: HTTP, and constraining the answer to a form (`structures`).
"""
