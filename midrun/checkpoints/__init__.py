"""Checkpoints: what midrun adds to those of a model, so that training goes on from one as if it had never stopped.

`position` tells where training is, `bundle` is what a checkpoint has of it, and `restart` takes training there again.
"""
