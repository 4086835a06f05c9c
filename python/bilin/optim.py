"""Optimisers, and clipping of gradients."""

from ._bilin import SGD, AdamW, clip_grad_norm

__all__ = ["SGD", "AdamW", "clip_grad_norm"]
