"""What tests of humming and of its plugins share: the independent float64 oracle."""
