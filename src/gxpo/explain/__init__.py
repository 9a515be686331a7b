"""What a person reads: the catalogue of methods, plans, reports."""
