"""Number formats and exact arithmetic on NumPy arrays: no machine, no instructions."""
