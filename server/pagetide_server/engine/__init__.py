"""The engine: one step is schedule -> batch -> forward -> sample -> settle.

Belongs here: deciding what runs (pure, no torch), the choice of tokens (`sampling/`), and the loop over both (`core`).
Does not belong here: networks and weights (`model/`), text (`text/`), HTTP (`api/`), processes (`process/`).
"""
