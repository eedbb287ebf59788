"""The command line: ``humming simulate``, and ``python -m humming_sim`` without humming-core."""
