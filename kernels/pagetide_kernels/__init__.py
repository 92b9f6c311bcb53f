"""The ops that the model runs on: one file an op, each beside its float32 reference in `reference/`.

Belongs here: tensors in, tensors out. Does not belong here: requests, scheduling, configuration, any other Pagetide
package.
"""
