"""How many replicas there should be and where, held against those that there are."""
