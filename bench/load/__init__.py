"""A pair of nodes under Poisson load: what users get beside what they get alone, and beside what formulas allow."""
