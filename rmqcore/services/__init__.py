"""Background work of a store: one service a file; every service stops the same way."""
