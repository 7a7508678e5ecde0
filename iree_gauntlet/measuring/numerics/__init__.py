"""Arrays, element types, tolerances, and how outputs are compared."""
