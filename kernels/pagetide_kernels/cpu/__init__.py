"""Ops in C++ for the CPU, built on the machine where they run: `build` compiles and keeps them, the rest calls them.

Does not belong here: which implementation runs (`dispatch`), models, requests.
"""
