"""The parts of bench/cpu_peers.py: who runs, on what, and what comes of the figures; in `drivers` what runs them."""
