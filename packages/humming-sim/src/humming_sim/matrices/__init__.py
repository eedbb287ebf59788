"""Matrix instructions as pure functions: fragments, products, moves, shared-memory operands."""
