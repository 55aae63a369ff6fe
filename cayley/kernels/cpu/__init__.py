"""The recurrences in C, for the CPU."""
