"""Instructions: each family of the PTX manual compiles its instructions to steps over frames."""
