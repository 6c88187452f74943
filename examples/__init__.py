"""Small training programs that use midrun."""
