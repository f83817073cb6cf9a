"""Reading mapped files: gets and key queries in one native call each.

Never writes, and never waits for a writer.

Floor: F1.
"""
