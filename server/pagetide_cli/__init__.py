"""The `pagetide` command: takes the first word and hands over to the room that does the work.

Each room is imported only when its command is called, so that `pagetide gateway` needs no torch and `pagetide serve` no
kubernetes client.
"""
