"""The engine: one step is schedule -> batch -> forward -> sample -> settle.

Belongs here: deciding what runs (pure, no torch), sampling, and the loop and process around it. Does not belong here:
networks and weights (`model/`), text (`text/`), HTTP (`api/`).
"""
