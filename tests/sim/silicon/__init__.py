"""Micro-kernels whose results an H200 recorded and the simulator must reproduce.

``case`` says what a case is, the ``*_cases`` modules make them, ``record`` runs them on a GPU and
``replay`` runs them in the simulator.
"""
