"""The model's files on the disk: finding, fetching and converting them. No torch.

Belongs here: paths, hub ids, the conversion cache. Does not belong here: what the files mean to a network (`model/`).
"""
