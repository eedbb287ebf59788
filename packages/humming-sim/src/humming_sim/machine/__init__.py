"""A running kernel: registers, memories, barriers, asynchronous operations and the scheduler."""
