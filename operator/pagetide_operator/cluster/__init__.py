"""A cluster as it is found: the API server over HTTP, kinds of objects, what pods report, what watches report.

Belongs here: facts that hold for any operator. Does not belong here: what ought to be (`desired/`), and what an
InferenceService's state means (`verdicts/`).
"""
