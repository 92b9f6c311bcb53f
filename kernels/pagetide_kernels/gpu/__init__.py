"""Ops in Triton for NVIDIA and AMD GPUs, one file an op: the launcher checks and picks sizes, the kernel computes.

Grids and sizes follow from what the host knows; no launcher waits for the device. Addresses are 64 bits wide.
Does not belong here: which implementation runs (`dispatch`), CUDA graphs, models (`pagetide_server.model`).
"""
