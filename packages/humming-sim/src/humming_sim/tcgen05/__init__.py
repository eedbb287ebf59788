"""Fifth-generation tensor core: descriptors, tensor memory layouts and products, pure NumPy."""
