"""Races of the library against what people use instead."""
