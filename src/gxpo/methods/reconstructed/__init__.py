"""Methods made from an abstract and general knowledge, not verified.

They go by the same names as all others and pass the same tests, but promise less: when their sources can be read, keys
and formulas change without notice.
"""
