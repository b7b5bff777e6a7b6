"""WHY one loop is legal: decomposition, updates, merges, proofs. No torch here."""
