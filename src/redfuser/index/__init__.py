"""WHAT is computed: maps and reductions over named axes, index expressions for every view. No torch here."""
