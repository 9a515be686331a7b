"""Reports for people: the catalogue of methods, plans, checks, pictures."""
