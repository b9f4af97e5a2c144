"""What a trained actor decides on validation hours, next to constants and rules."""
