"""Optimisers."""

from ._bilin import SGD, AdamW

__all__ = ["SGD", "AdamW"]
