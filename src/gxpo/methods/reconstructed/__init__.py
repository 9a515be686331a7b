"""Methods made from an abstract and general knowledge, not verified.

They are used by name and tested like all others, but promise less: when their sources can be read, keys and formulas
change without notice.
"""
