"""The `pagetide` command: takes the first word and hands over to the package that does the work.

Each package is imported only when its command is called, so that `pagetide gateway` needs no torch and `pagetide serve`
no kubernetes client. Does not belong here: flags and logic of any command.
"""
