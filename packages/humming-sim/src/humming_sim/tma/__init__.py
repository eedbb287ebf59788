"""Tensor maps, the geometry of their tiles, and the rules of bulk copies; all of it pure."""
