"""Parameters of rows to draw tokens from, for the kernels of every device."""

from __future__ import annotations

# temperature, top_k, top_p, min_p
ROWS: list[tuple[float, int, float, float]] = [
    (0.7, 0, 1.0, 0.0),
    (1.0, 5, 1.0, 0.0),
    (1.0, 1, 0.9, 0.0),
    (1.5, 0, 0.8, 0.0),
    (1.0, 9, 0.7, 0.01),
    (1.0, 0, 0.0, 0.1),
    (2.0, 300, 0.95, 0.0),
    (0.01, 0, 0.5, 0.0),
    (30.0, 6000, 0.3, 0.0),
]
