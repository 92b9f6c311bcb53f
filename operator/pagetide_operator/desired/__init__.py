"""Desired state: the manifests of a service's children, and which pod template its Deployment keeps. Pure.

Does not belong here: comparing it with what is there (`plan`), and the Job that fetches a model (`prefetch`).
"""
