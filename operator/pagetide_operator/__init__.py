"""The control plane: resource -> desired -> plan -> act, and the local runner that does the same without a cluster.

Pure functions decide and return manifests or actions; one file does the I/O. Imports no torch.
Does not belong here: serving requests (`pagetide_server`), routing them (`pagetide_gateway`), and names, defaults and
limits (`pagetide_spec`).
"""
